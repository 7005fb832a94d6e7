"""day0 doctor: what this machine can do, and what is missing."""

import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from day0.cli.common import command
from day0.cli.output import Output


@command
def doctor(out: Output) -> None:
    """Say what this machine can do, and how to get what is missing

    Exit code 2 when day0 itself cannot run here.

    Example: day0 doctor
    """
    with out.progress("looking at this machine"):
        rows = [*_software(), *_devices(), *_sandbox(), *_machine()]
    out.table(rows)
    out.document(rows)
    if out.quiet:
        for row in rows:
            if not row["ok"]:
                out.value(f"{row['what']}: {row['get_it']}")
    if any(row["needed"] and not row["ok"] for row in rows):
        import typer

        raise typer.Exit(2)


def _row(what: str, found: str, *, ok: bool, needed: bool = False, get_it: str = "") -> dict[str, Any]:
    return {"what": what, "found": found, "ok": ok, "needed": needed, "get_it": "" if ok else get_it}


def _software() -> list[dict[str, Any]]:
    from day0.artifacts.provenance import package_versions

    versions = package_versions()
    python = platform.python_version()
    return [
        _row("python", python, ok=sys.version_info >= (3, 11), needed=True, get_it="install Python 3.11 or newer"),
        _row(
            "torch", versions.get("torch", "missing"), ok="torch" in versions, needed=True, get_it="pip install torch"
        ),
        _row(
            "transformers",
            versions.get("transformers", "missing"),
            ok="transformers" in versions,
            get_it="pip install 'day0-workbench[reference]': decompose and align read the reference from it",
        ),
        _row(
            "triton",
            versions.get("triton", "missing"),
            ok="triton" in versions,
            get_it="pip install triton (Linux with a GPU): without it every operator runs on its PyTorch reference",
        ),
    ]


def _devices() -> list[dict[str, Any]]:
    import torch

    rows = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found = f"{properties.name}, {properties.total_memory / 1e9:.0f} GB, sm_{properties.major}{properties.minor}"
        rows.append(_row(f"GPU {index}", found, ok=True))
    return rows or [_row("GPU", "none", ok=False, get_it="not needed: the whole line runs on a CPU")]


def _sandbox() -> list[dict[str, Any]]:
    from day0.repo.sandbox import sandbox_capabilities

    rows = []
    for name, holds in sandbox_capabilities().items():
        found = holds if isinstance(holds, str) else ("yes" if holds else "no")
        hint = "--trust-remote-code needs it; without it only =unsandboxed runs a repo's own code"
        rows.append(_row(f"sandbox: {name.replace('_', ' ')}", found, ok=holds is not False, get_it=hint))
    return rows


def _machine() -> list[dict[str, Any]]:
    from day0.mapping.device import load_device

    memory = load_device("cpu").usable_memory()
    disk = shutil.disk_usage(Path.cwd())
    return [
        _row("CPU memory", f"{memory / 1e9:.0f} GB", ok=True),
        _row("disk here", f"{disk.free / 1e9:.0f} GB free", ok=disk.free > 1e9, get_it="free some space, or use -w"),
    ]
