"""Align with a reference that is the repo's own code: the whole stage runs in the sandbox, its answer is checked."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError

from day0.align.stage import Options, run
from day0.artifacts.alignment import Alignment
from day0.artifacts.base import Provenance
from day0.artifacts.inventory import Inventory
from day0.errors import Day0Error
from day0.reference.load import local_folder
from day0.reference.remote_code import register_code
from day0.repo.model_repo import ModelRepo
from day0.repo.sandbox import run_sandboxed

_SECONDS = 3600.0
_ADDRESS_SPACE = 256 << 30  # bytes; torch and the weights are mapped, twice in float64
_PLAIN = ("greedy_tokens", "texts", "seed", "stream")


def run_trusted(
    repo: ModelRepo,
    package_folder: Path,
    inventory: Inventory,
    options: Options,
    produced_by: Provenance,
    *,
    trust: Literal["sandboxed", "unsandboxed"],
) -> Alignment:
    """`run` for a repo with code of its own, which is confined to a subprocess ("unsandboxed": a bare one).

    Raises Day0Error: isolation does not hold here, out of time or memory, the code failed or gave no usable answer.
    """
    folder = local_folder(repo).resolve()
    payload = {
        "repo": str(folder),
        "package": str(package_folder.resolve()),
        "inventory": inventory.model_dump(mode="json"),
        "options": {name: getattr(options, name) for name in _PLAIN}
        | {
            "dtypes": [str(dtype).removeprefix("torch.") for dtype in options.dtypes],
            "golden": str(options.golden.resolve()) if options.golden else None,
        },
        "produced_by": produced_by.model_dump(mode="json"),
    }
    readable = [folder, package_folder.resolve(), *([options.golden.resolve()] if options.golden else [])]
    said = run_sandboxed(
        "day0.align.sandboxed:run_inside",
        payload,
        timeout_s=_SECONDS,
        memory_bytes=_ADDRESS_SPACE,
        read_paths=readable,
        unsandboxed=trust == "unsandboxed",
    )
    try:
        alignment = Alignment.model_validate(said)
    except ValidationError as error:  # it comes from untrusted code
        raise Day0Error("the repo's code gave no usable alignment", hint="check the repo's code") from error
    warning = f"the repo's own code was run, {trust}: what it says of itself is its own word"
    return alignment.model_copy(update={"warnings": (*alignment.warnings, warning), "produced_by": produced_by})


def run_inside(payload: Mapping[str, Any]) -> dict[str, Any]:
    """In the sandbox: make the repo's classes known, then align."""
    repo = ModelRepo.open(Path(payload["repo"]))
    register_code(repo, Path(payload["repo"]))
    raw = dict(payload["options"])
    options = Options(
        **{name: raw[name] for name in _PLAIN if name != "texts"},
        texts=tuple(raw["texts"]),
        dtypes=tuple(getattr(torch, name) for name in raw["dtypes"]),
    )
    if raw["golden"]:
        options = replace(options, golden=Path(raw["golden"]))
    inventory = Inventory.model_validate(payload["inventory"])
    produced_by = Provenance.model_validate(payload["produced_by"])
    return run(repo, Path(payload["package"]), inventory, options, produced_by).model_dump(mode="json")
