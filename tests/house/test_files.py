"""What is committed: no path of the machine it was written on, every kind complete, the data that ships."""

import re

import pytest

from tests.house.source_tree import KERNELS, LIBRARIES, ROOT, committed_files, kinds

BINARY = {".safetensors", ".png", ".gz"}
# Written so that this file does not match itself.
MACHINE_PATH = re.compile(r"/w[o]rk/|\bs[h]ared/|/r[o]ot\b|/h[o]me/\w|/tmp/b[r]ief")
LIBRARY_FILES = ["__init__.py", "reference.py", "triton_cases.py", "triton_bench.py"]
KIND_FILES = ["__init__.py", "schema.py", "reference.py", "contract.py", "cost.py", "kind.py", "module.py.j2"]
TOP_LEVEL = {"pyproject.toml", "README.md", "Makefile", "LICENSE", "constraints.txt"} | {
    "day0",
    "kernels",
    "templates",
    "recipes",
    "tests",
    "docs",
}


def test_no_committed_file_names_a_machine_path():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in committed_files()
        if path.is_file() and not path.is_symlink() and path.suffix not in BINARY
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_top_level_holds_what_the_house_plan_says():
    top = {path.relative_to(ROOT).parts[0] for path in committed_files()}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL


def test_linked_folders_are_committed_as_links():
    for name in ("kernels", "recipes", "templates"):
        link = ROOT / "day0" / name
        assert link.is_symlink() and link.resolve() == ROOT / name
    assert not (KERNELS / "__init__.py").exists(), "a package `kernels` would hide the one that transformers looks for"


@pytest.mark.parametrize("kind", kinds())
def test_a_kind_is_complete(kind):
    missing = [name for name in KIND_FILES if not (KERNELS / kind / name).is_file()]
    if not (ROOT / "tests" / "kernels" / f"test_{kind}.py").is_file():
        missing.append(f"tests/kernels/test_{kind}.py")
    assert not missing


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_kernels_that_are_no_kind_are_complete(library):
    """What a kind has beside its declarations; and none of those, which would make it a kind."""
    missing = [name for name in LIBRARY_FILES if not (KERNELS / library / name).is_file()]
    if not (ROOT / "tests" / "kernels" / f"test_triton_{library}.py").is_file():
        missing.append(f"tests/kernels/test_triton_{library}.py")
    assert not missing
    assert not {path.name for path in (KERNELS / library).iterdir()} & {"kind.py", "schema.py", "module.py.j2"}


@pytest.mark.parametrize("kind", kinds())
def test_the_registry_knows_the_kind(kind):
    from day0.kernels.registry import get_kind, module_source, resolve

    declared = get_kind(kind)
    assert declared.implementations[0].name == "torch", "the reference comes first: everything falls back on it"
    for implementation in declared.implementations:
        for method in declared.methods:
            if implementation.name == "torch":
                assert callable(resolve(kind, implementation.name, method))
    assert "OperatorModule" in module_source(kind)
