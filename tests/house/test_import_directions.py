"""Imports point one way: cli -> stages -> engine -> kernels -> artifacts. docs/architecture.md has the rooms."""

import re
import sys

from tests.house.source_tree import (
    LIBRARIES,
    ROOT,
    SHARED_BY_KINDS,
    day0_modules,
    imported,
    imports,
    kernel_modules,
    templates,
)

STAGES = {"decompose", "mapping", "generate", "align", "check"}
BELOW_STAGES = {"errors", "artifacts", "language", "reference", "repo", "engine", "kernels"}

# Room (folder or module directly in day0/) -> rooms that it may import, beside itself.
MAY_IMPORT = {
    "cli": STAGES | BELOW_STAGES | {"pipeline", "serve", "workspace", "demo"},
    "pipeline": STAGES | BELOW_STAGES | {"serve", "workspace", "demo"},
    "workspace": {"errors", "artifacts", "repo"},
    **{stage: BELOW_STAGES for stage in STAGES},
    # A package reads its weights from the model repo that it was made for.
    "engine": {"errors", "artifacts", "kernels", "repo"},
    # The HTTP front of a running engine: stages know nothing of it.
    "serve": {"errors", "artifacts", "engine", "kernels", "repo"},
    "reference": {"errors", "artifacts", "language", "repo"},
    "language": {"errors", "artifacts", "kernels"},
    "repo": {"errors", "artifacts"},
    "kernels": {"errors", "artifacts"},
    "artifacts": {"errors"},
    "demo": set(),
    "errors": set(),
}

# Packages that a room does without, because with them it would do more than it says.
DOES_WITHOUT = {
    "artifacts": {"torch", "transformers", "triton"},
    "language": {"transformers", "triton"},
    "mapping": {"transformers", "triton"},
    "engine": {"transformers", "triton"},
    "serve": {"transformers", "triton"},
}
KERNELS_MAY_IMPORT = {"day0", "torch", "triton", "pydantic"} | set(sys.stdlib_module_names)
# What everything outside a kind's own folder may see of kernels/.
OPEN_KERNELS = SHARED_BY_KINDS | LIBRARIES | {"registry"}


def room(name: str) -> str | None:
    """`day0.repo.hub` -> `repo`; None for a name outside day0, and for day0 itself (`__version__`)."""
    parts = name.split(".")
    return parts[1] if parts[0] == "day0" and len(parts) > 1 and not parts[1].startswith("__") else None


def every_import(modules):
    """(module, imported name, `file:line: name`) of all imports of the modules."""
    for module in modules:
        for name, line in imports(module):
            yield module, name, f"{module}:{line}: {name}"


def test_every_room_is_in_the_table():
    rooms = {room(module.name) for module in day0_modules()} - {None}
    assert len(rooms) > 5, "hardly a room found: these tests would pass on nothing"
    assert rooms <= set(MAY_IMPORT), "say in MAY_IMPORT what the new room may import"


def test_imports_point_one_way():
    wrong = [
        where
        for module, name, where in every_import(day0_modules() + kernel_modules())
        if room(name) not in {None, room(module.name)} and room(name) not in MAY_IMPORT[room(module.name)]
    ]
    assert not wrong, "\n".join(wrong)


# Kernels that compute two kinds in one go stand with the one that comes last: (its folder, the other kind).
JOINED = {("sparse_attention", "index_select"): "triton_chained.py triton_bench_chained.py"}


def test_a_kind_is_imported_by_its_own_folder_only():
    wrong = []
    for module, name, where in every_import(day0_modules() + kernel_modules()):
        own = module.name.split(".")[2] if room(module.name) == "kernels" else None
        parts = name.split(".")
        joins = JOINED.get((own, parts[2]), "") if len(parts) > 2 else ""
        if module.path.name in joins.split():
            continue
        if room(name) == "kernels" and len(parts) > 2 and parts[2] not in OPEN_KERNELS | {own}:
            wrong.append(where)
    assert not wrong, "\n".join(wrong)


def test_rooms_do_without_heavy_packages():
    wrong = [
        where
        for module, name, where in every_import(day0_modules())
        if name.split(".")[0] in DOES_WITHOUT.get(room(module.name), set())
    ]
    assert not wrong, "\n".join(wrong)


def test_kernels_stand_on_torch_and_triton_alone():
    wrong = [where for _, name, where in every_import(kernel_modules()) if name.split(".")[0] not in KERNELS_MAY_IMPORT]
    assert not wrong, "\n".join(wrong)


def test_only_triton_files_need_triton():
    """Contracts, references and costs are importable on a machine without triton."""
    modules = {module.name: module for module in kernel_modules()}
    at_the_top = {name: [n for node in m.tree.body for n, _ in imported(node, m)] for name, m in modules.items()}
    needing = {"triton"}
    while True:
        more = {
            name
            for name, found in at_the_top.items()
            if name not in needing and any(n == known or n.startswith(f"{known}.") for n in found for known in needing)
        }
        if not more:
            break
        needing |= more
    assert "day0.kernels.norm.triton_fused" in needing, "hardly an import found: this test would pass on nothing"
    wrong = [name for name in needing - {"triton"} if "triton" not in modules[name].path.stem]
    assert not wrong, "\n".join(sorted(wrong))


def test_a_generated_package_imports_torch_and_kernels_alone():
    wrong = []
    for template in (path for path in templates() if path.name.endswith(".py.j2")):
        for name in re.findall(r"^\s*(?:from|import)\s+([\w.]+)", template.read_text(), flags=re.MULTILINE):
            if name.split(".")[0] not in {"torch", *sys.stdlib_module_names} and not name.startswith("day0.kernels"):
                wrong.append(f"{template.relative_to(ROOT)}: {name}")
    assert not wrong, "\n".join(wrong)
