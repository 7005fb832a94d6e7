"""Finds the kinds: every folder beside this file that holds a `kind.py` is one.

A folder of Triton files without one holds kernels that are no operator, such as the draw of the next token.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from day0.kernels.interface.kind import Kind

if TYPE_CHECKING:  # torch is slow to import, and who asks for a kind's name does without
    from day0.kernels.interface.choice import Choice


@cache
def kind_names() -> tuple[str, ...]:
    """Names of all kinds, sorted."""
    here = Path(__file__).resolve().parent
    return tuple(sorted(p.parent.name for p in here.glob("*/kind.py") if p.parent.name != "interface"))


@cache
def kernel_folders() -> tuple[str, ...]:
    """Names of all kinds, and of the folders of kernels that are no operator, sorted."""
    here = Path(__file__).resolve().parent
    holding = {path.parent.name for path in here.glob("*/triton_*.py")} - {"interface", "common"}
    return tuple(sorted(holding | set(kind_names())))


@cache
def get_kind(name: str) -> Kind[Any]:
    """The kind of that name. Raises KeyError listing the known ones."""
    if name not in kind_names():
        raise KeyError(f"unknown kind {name!r}; known: {', '.join(kind_names())}")
    kind: Kind[Any] = importlib.import_module(f"day0.kernels.{name}.kind").KIND
    if kind.name != name:
        raise ValueError(f"kernels/{name}/kind.py declares kind {kind.name!r}")
    return kind


@cache
def resolve(kind: str, implementation: str, method: str = "") -> Callable[..., Any]:
    """The function that computes one method of a kind. Raises KeyError on an unknown implementation."""
    chosen = get_kind(kind).implementation(implementation)
    function: Callable[..., Any] = getattr(importlib.import_module(chosen.module), method or kind)
    return function


def declared(folder: str, prefix: str, name: str) -> list[Any]:
    """What the modules `kernels/<folder>/<prefix>*.py` list under `name`: CASES of "triton_cases", BENCHES of
    "triton_bench". Importing them imports triton."""
    found = (Path(__file__).resolve().parent / folder).glob(f"{prefix}*.py")
    modules = [importlib.import_module(f"day0.kernels.{folder}.{stem}") for stem in sorted(path.stem for path in found)]
    return [x for module in modules for x in getattr(module, name)]


def resolve_choices(kind: str) -> "Callable[..., Mapping[str, Choice]] | None":
    """The function that gives a kind's choices with their scores; None for a kind that makes none."""
    return resolve(kind, "torch", "choices") if get_kind(kind).chooses else None


def module_source(name: str) -> str:
    """The template of a kind's module in a generated package."""
    get_kind(name)
    return (Path(__file__).resolve().parent / name / "module.py.j2").read_text(encoding="utf-8")
