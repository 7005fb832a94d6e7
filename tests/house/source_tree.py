"""The checkout as these tests read it: its Python modules, what they import, and the words in their code."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
SHARED_BY_KINDS = {"interface", "common"}
# Kernels that are no kind of operator: nothing in a recipe names them, whoever runs a package calls them.
LIBRARIES = {"quantize", "sample"}
LINKED = {"kernels", "recipes", "templates"}


@dataclass(frozen=True)
class Module:
    """A Python file of the product, under the name it is imported by."""

    name: str
    path: Path

    @property
    def tree(self) -> ast.Module:
        return parse(self.path)

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def day0_modules() -> list[Module]:
    """Every module in `day0/` itself, without the folders linked into it."""
    return [m for m in _modules(ROOT / "day0", "day0") if m.path.relative_to(ROOT / "day0").parts[0] not in LINKED]


def kernel_modules() -> list[Module]:
    """Every module in `kernels/`."""
    return _modules(KERNELS, "day0.kernels")


def _modules(folder: Path, package: str) -> list[Module]:
    modules = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        modules.append(Module(".".join([package, *(part for part in parts if part != "__init__")]), path))
    return modules


def kinds() -> list[str]:
    """Every folder of `kernels/` that is a kind of operator, finished or not."""
    return sorted(
        folder.name
        for folder in KERNELS.iterdir()
        if folder.is_dir() and folder.name not in SHARED_BY_KINDS | LIBRARIES and not folder.name.startswith(("_", "."))
    )


def families() -> list[str]:
    """Every model family that has a recipe."""
    return sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))


def templates() -> list[Path]:
    """Everything that a generated package is made from."""
    return sorted([*KERNELS.rglob("*.j2"), *(ROOT / "templates").rglob("*.j2")])


def imports(module: Module) -> Iterator[tuple[str, int]]:
    """(absolute name, line) of everything that a module imports, wherever in the file."""
    for node in ast.walk(module.tree):
        yield from imported(node, module)


def imported(node: ast.AST, module: Module) -> Iterator[tuple[str, int]]:
    """(absolute name, line) of what a statement of the module imports; nothing if it is no import.

    `from a.b import c` gives `a.b.c`: c may be a module.
    """
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, node.lineno
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = module.name.split(".")
            if module.path.name == "__init__.py":
                package.append("__init__")
            base = ".".join([*package[: -node.level], *([base] if base else [])])
        for alias in node.names:
            yield f"{base}.{alias.name}", node.lineno


def words(tree: ast.Module) -> Iterator[tuple[str, bool, int]]:
    """(text, whether it is a string, line) of each string that is no docstring, and of each identifier."""
    docstrings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        # A string on a line of its own documents the field above it.
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docstrings:
                yield node.value, True, node.lineno
        elif isinstance(node, ast.Name):
            yield node.id, False, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, False, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, False, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, False, node.lineno


def committed_files() -> list[Path]:
    """Every file that git tracks here."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60)
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]
