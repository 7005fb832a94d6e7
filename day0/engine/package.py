"""Loads a generated package and fills its weights."""

import fnmatch
import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

from day0.artifacts.contract import Facts
from day0.artifacts.manifest import Manifest
from day0.artifacts.plan import Plan
from day0.errors import Day0Error
from day0.kernels.interface.package import Package
from day0.repo import ModelRepo

_DUMMY_SEED = 0


def load_package(
    folder: Path,
    repo: ModelRepo | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    fill: bool = True,
) -> Package:
    """The package's Model in eval mode, its implementations chosen by its plan and its weights read from `repo`.

    Where an implementation of the plan refuses this dtype or device, the plain reference stands in: `stood_in()`.
    A package made with --dummy-weights gets random weights and needs no repo. `fill=False` leaves weights empty.
    Raises Day0Error: no package, a damaged manifest or plan, a broken model.py, a weight missing, mis-shaped,
    unexpected or not finite.
    """
    folder = folder.resolve()
    manifest = Manifest.read(folder)
    model = _model_class(folder)()
    try:
        model.choose(_implementations(folder), facts_here(dtype, device))
    except KeyError as error:
        raise Day0Error(f"{folder / 'plan.yaml'}: {error.args[0]}", hint="run day0 map and generate again") from error
    if not fill:
        return model.eval()
    if manifest.dummy_weights:
        model.fill(dtype, seed=_DUMMY_SEED, device=device)
        return model.eval()
    if repo is None:
        raise Day0Error("the package needs its checkpoint", hint="pass the repo it was generated for")
    if repo.hash != manifest.model_hash:
        raise Day0Error(f"the package was generated for another revision of {manifest.model}", hint="generate it again")
    _fill_from(model, repo, whole=manifest.whole, dtype=dtype, device=device)
    return model.eval()


def _fill_from(model: Package, repo: ModelRepo, *, whole: bool, dtype: torch.dtype, device: Any) -> None:
    read_names: set[str] = set()
    not_finite: list[str] = []

    def read(name: str) -> torch.Tensor:
        if name not in repo.tensors:
            raise KeyError(name)
        read_names.add(name)
        tensor = repo.read_tensor(name)
        if tensor.is_floating_point() and not torch.isfinite(tensor.float()).all():
            not_finite.append(name)
        return tensor

    model.load(read, dtype=dtype, device=device)
    if not_finite:
        shown = ", ".join(not_finite[:5])
        more = f" and {len(not_finite) - 5} more" if len(not_finite) > 5 else ""
        raise Day0Error(f"weights hold NaN or infinity: {shown}{more}", hint="the checkpoint is damaged: get it anew")
    left_out = model.weight_map()["left_out"]
    unexpected = [
        name
        for name in repo.tensors
        if name not in read_names and not any(fnmatch.fnmatchcase(name, pattern) for pattern in left_out)
    ]
    if whole and unexpected:
        shown = ", ".join(unexpected[:5])
        raise Day0Error(
            f"{len(unexpected)} checkpoint tensors have no place in the package: {shown}",
            hint="claim them in the recipe's weights, or name them in left_out with the reason",
        )


def _model_class(folder: Path) -> type[Package]:
    source = folder / "model.py"
    if not source.is_file():
        raise Day0Error(f"{folder} holds no model.py", hint="run day0 generate first")
    name = f"day0_package_{abs(hash(str(source)))}"
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None and spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    # Compiled files beside model.py would go stale in user-edited packages and break a read-only one.
    dont_write, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's edit raises is reported as theirs
        raise Day0Error(
            f"{source} does not load: {type(error).__name__}: {error}", hint="undo the edit, or generate with --force"
        ) from error
    finally:
        sys.dont_write_bytecode = dont_write
    model: type[Package] = module.Model
    return model


def facts_here(dtype: torch.dtype, device: torch.device | str) -> Facts:
    """What contracts ask of the dtype and of the device that a package runs on."""
    name = str(dtype).removeprefix("torch.")
    place = torch.device(device)
    on_gpu = place.type == "cuda"
    major, minor = torch.cuda.get_device_capability(place) if on_gpu else (0, 0)
    facts = {
        "type": place.type,
        "name": torch.cuda.get_device_name(place) if on_gpu else place.type,
        "capability": major + minor / 10,
        "triton": on_gpu and importlib.util.find_spec("triton") is not None,
    }
    return {"dtype": {"activation": name, "weight": name}, "device": facts}


def _implementations(folder: Path) -> dict[str, dict[str, str]]:
    chosen: dict[str, dict[str, str]] = {}
    for line in Plan.read(folder).lines:
        chosen.setdefault(line.operator, {})[line.phase] = line.implementation
    return chosen
