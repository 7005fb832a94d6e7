"""One small model in every form that align's parts take: repo, package folder, packages, references."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from day0.align.exactness import Expected
from day0.align.training_side import Reference, as_reference, reference_in
from day0.artifacts.alignment import Prompt
from day0.engine.package import load_package
from day0.kernels.interface.package import Package
from day0.language.program import apply_recipe
from day0.reference.float64 import loaded_in_float64
from day0.repo.model_repo import ModelRepo

from .packages import recipe_of, write_program

FAMILY = "kimi_linear"


@pytest.fixture(scope="package")
def repo(tiny_repo: Callable[..., Path]) -> ModelRepo:
    return ModelRepo.open(tiny_repo(FAMILY))


@pytest.fixture(scope="package")
def folder(repo: ModelRepo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = apply_recipe(recipe_of(repo), repo.config, repo.tensors)
    return write_program(program, repo, tmp_path_factory.mktemp("align") / "package")


@pytest.fixture(scope="package")
def exact_reference(repo: ModelRepo) -> Reference:
    return as_reference(loaded_in_float64(repo), torch.float64)


@pytest.fixture(scope="package")
def reference(repo: ModelRepo) -> Reference:
    return reference_in(repo, torch.float32)


@pytest.fixture
def exact_package(repo: ModelRepo, folder: Path) -> Package:
    return load_package(folder, repo, dtype=torch.float64)


@pytest.fixture
def package(repo: ModelRepo, folder: Path) -> Package:
    return load_package(folder, repo, dtype=torch.float32)


@pytest.fixture(scope="package")
def prompts() -> list[Prompt]:
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in (19, 33)]
    drawn[1][16] = 258
    return [Prompt(name="short", ids=tuple(drawn[0])), Prompt(name="with an end id", ids=tuple(drawn[1]))]


@pytest.fixture(scope="package")
def expected(exact_reference: Reference, prompts: list[Prompt]) -> list[Expected]:
    return [Expected.of(exact_reference, prompt) for prompt in prompts]
