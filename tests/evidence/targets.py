"""What is measured together: the reference of each kind, each file that the kinds share, and the tests of each."""

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.house.source_tree import KERNELS, ROOT, SHARED_BY_KINDS, Module, imports, parse

TESTS = ROOT / "tests" / "kernels"


@dataclass(frozen=True)
class Target:
    """`sources` are measured by running `tests`. Paths from the checkout."""

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def depends_on(self) -> tuple[str, ...]:
        """The files of this project that decide how the tests come out."""
        return tuple(sorted(_closure({*self.sources, *self.tests})))


def kinds() -> list[str]:
    return sorted(path.parent.name for path in KERNELS.glob("*/kind.py") if path.parent.name not in SHARED_BY_KINDS)


def kernel_targets() -> list[Target]:
    """One target per kind, then one per shared file that a reference computes with.

    A shared file is tested by tests/kernels/test_<file>.py, or where there is none by the kinds that use it.
    """
    targets, users = [], {}
    for kind in kinds():
        used = _closure(_references(kind))
        own = sorted(file for file in used if file.startswith(f"kernels/{kind}/") and not file.endswith("__init__.py"))
        tests = _tests(kind)
        targets.append(Target(kind, tuple(own), tuple(tests)))
        for file in used:
            if file.startswith("kernels/common/") and not file.endswith("__init__.py"):
                users.setdefault(file, []).extend(tests)
    for file, tests in sorted(users.items()):
        direct = TESTS / f"test_{Path(file).name}"
        tests = [_relative(direct)] if direct.is_file() else tests
        if "Shown(" in (ROOT / file).read_text():  # what `day0 kernels show` prints is held to the kinds in one place
            tests = [*tests, _relative(TESTS / "test_shown.py")]
        targets.append(Target(f"common/{Path(file).stem}", (file,), tuple(tests)))
    return targets


def _references(kind: str) -> set[str]:
    """The modules of a kind's implementations in plain PyTorch; those in Triton cannot run everywhere."""
    from day0.kernels.registry import get_kind

    modules = [i.module for i in get_kind(kind).implementations if i.name.startswith("torch")]
    return {_relative(path) for name in modules if (path := _file(name)) is not None}


def _tests(kind: str) -> list[str]:
    """tests/kernels/test_<kind>.py and test_<kind>_*.py, but for those of a kind with a longer name."""
    longer = [other for other in kinds() if other.startswith(f"{kind}_")]
    stems = {path.stem: path for path in sorted([TESTS / f"test_{kind}.py", *TESTS.glob(f"test_{kind}_*.py")])}
    return [
        _relative(path)
        for stem, path in stems.items()
        if not any(f"{stem}_".startswith(f"test_{other}_") for other in longer)
    ]


def _closure(files: set[str]) -> set[str]:
    """The files and every file of this project that they import; of a kind that they name, all of its files.

    Imports are followed through kernels/ and tests/. What these take from other rooms is small and counts itself, but
    not what stands behind it: else an edit of the hub client would ask for the norms to be measured again.
    """
    found: set[str] = set()
    waiting = set(files)
    while waiting:
        file = waiting.pop()
        found.add(file)
        if file in files or file.startswith(("kernels/", "tests/")):
            waiting |= _imported(file) - found
    return found


@cache
def _imported(file: str) -> frozenset[str]:
    module = Module(module_name(file), ROOT / file)
    paths = {path for name, _ in imports(module) if (path := _file(name)) is not None}
    if file.startswith("tests/"):
        for kind in _kinds_asked_for(module.tree):
            # What runs in Triton is imported only where it is asked for by name.
            paths |= {path for path in (KERNELS / kind).glob("*.py") if not path.name.startswith("triton")}
    return frozenset(_relative(path) for path in paths)


def _kinds_asked_for(tree: ast.Module) -> set[str]:
    """Names of kinds that the registry is asked for: get_kind("norm"), resolve("norm", ...)."""
    asked = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"get_kind", "resolve"}:
            if node.args and isinstance(node.args[0], ast.Constant):
                asked.add(node.args[0].value)
    return asked & set(kinds())


def module_name(file: str) -> str:
    """The name that a file of this project is imported by."""
    parts = Path(file).with_suffix("").parts
    parts = ("day0", *parts) if parts[0] == "kernels" else parts
    return ".".join(part for part in parts if part != "__init__")


def _file(name: str) -> Path | None:
    """The file of a module of this project, or of the module that an imported name stands in."""
    parts = name.split(".")
    if parts[0] not in {"day0", "tests"}:
        return None
    parts = parts[1:] if parts[:2] == ["day0", "kernels"] else parts
    while parts:
        base = ROOT.joinpath(*parts)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file() and path != ROOT / "__init__.py":
                return path
        parts = parts[:-1]
    return None


def _relative(path: Path) -> str:
    return path.resolve().relative_to(ROOT).as_posix()


def external_imports(files: Iterable[str]) -> set[str]:
    """Modules from outside this project and the standard library that the files, and what they import, name."""
    names = set()
    for file in _closure(set(files)):
        tree = parse(ROOT / file)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
    return {n for n in names if n.split(".")[0] not in {"day0", "tests", "triton", *sys.stdlib_module_names}}
