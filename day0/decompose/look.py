"""Look at the reference: config, structure and behaviour, in this process or, for a repo's own code, in a sandbox."""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from day0.decompose.behaviour import Behaviour, observe
from day0.decompose.proof import Proof
from day0.decompose.structure import Module, Structure, build_structure
from day0.errors import Day0Error
from day0.language.recipe import Recipe, read_recipe, write_recipe
from day0.reference.config_watch import ConfigReads
from day0.reference.load import config_from_dict, require_transformers
from day0.reference.remote_code import copy_code, register_code
from day0.repo.model_repo import ModelRepo
from day0.repo.reference_source import ReferenceSource
from day0.repo.sandbox import run_sandboxed

SANDBOX_SECONDS = 300.0
SANDBOX_BYTES = 32 << 30  # of address space: torch alone maps several GiB

Trust = Literal["sandboxed", "unsandboxed"]


@dataclass(frozen=True)
class ReferenceConfig:
    """The reference's own view of a config: `text` is the text model's part, under `text_key` of a wrapper."""

    text: dict[str, Any]
    text_key: str = ""
    aliases: dict[str, str] = field(default_factory=dict)  # other names of keys in the text part
    # What the running reference read; None when it did not run.
    text_reads: frozenset[str] | None = None
    whole_reads: frozenset[str] | None = None


@dataclass
class Seen:
    """What the reference said, as far as it could be asked, and what stood in the way."""

    config: ReferenceConfig | None = None
    structure: Structure | None = None
    behaviour: Behaviour | None = None
    warnings: list[str] = field(default_factory=list)


def look(
    repo: ModelRepo, source: ReferenceSource, recipe: Recipe | None, *, trust: Trust | None = None, seed: int = 0
) -> Seen:
    """Ask the reference. What fails is a warning, since the other evidence still says something.

    A repo's own code runs only when it is trusted, in a confined subprocess ("unsandboxed": a bare one).
    """
    try:
        if source.kind == "transformers":
            return _look(repo.config, recipe, seed)
        if source.kind == "remote_code" and trust is not None:
            return _look_in_sandbox(repo, recipe, trust, seed)
        if source.kind == "none":
            require_transformers()
            raise Day0Error(f"no reference: {source.reason}")
        raise Day0Error(f"it is the repo's own code ({source.class_name}); --trust-remote-code runs it in a sandbox")
    except Day0Error as error:
        return Seen(warnings=[f"the reference was not used: {error.message}"])


def _look(raw: Mapping[str, Any], recipe: Recipe | None, seed: int) -> Seen:
    config, _ = config_from_dict(raw)
    seen = Seen()
    try:
        seen.structure = build_structure(config)
    except Day0Error as error:
        seen.warnings.append(f"no structure: {error.message}")
    reads: ConfigReads | None = None
    try:
        seen.behaviour = observe(config, recipe, seed=seed)
        reads = seen.behaviour.reads
        seen.warnings += seen.behaviour.notes
    except Day0Error as error:
        seen.warnings.append(f"behaviour was not watched: {error.message}")
    text = config.get_text_config()
    seen.config = ReferenceConfig(
        text=text.to_dict(),
        text_key=next((n for n in getattr(config, "sub_configs", ()) if getattr(config, n, None) is text), ""),
        aliases=dict(getattr(type(text), "attribute_map", None) or {}),
        text_reads=reads.of(text) if reads is not None else None,
        whole_reads=reads.of(config) if reads is not None else None,
    )
    return seen


def _look_in_sandbox(repo: ModelRepo, recipe: Recipe | None, trust: Trust, seed: int) -> Seen:
    with tempfile.TemporaryDirectory(prefix="day0-code-") as folder:
        copy_code(repo, Path(folder))
        payload = {"folder": folder, "recipe": write_recipe(recipe) if recipe is not None else "", "seed": seed}
        said = run_sandboxed(
            "day0.decompose.look:look_inside",
            payload,
            timeout_s=SANDBOX_SECONDS,
            memory_bytes=SANDBOX_BYTES,
            read_paths=[Path(folder)],
            unsandboxed=trust == "unsandboxed",
        )
    try:
        seen = _from_plain(said)
    except (KeyError, TypeError, ValueError) as error:  # it comes from untrusted code
        raise Day0Error(f"the repo's code gave an unusable answer ({error})", hint="check the repo's code") from error
    seen.warnings.append(f"the repo's own code was run, {trust}: its behaviour is its own word")
    return seen


def look_inside(payload: Mapping[str, Any]) -> dict[str, Any]:
    """In the sandbox: import the code in payload["folder"] and look. The answer is plain data."""
    repo = ModelRepo.open(Path(payload["folder"]))
    register_code(repo, Path(payload["folder"]))
    recipe = read_recipe(payload["recipe"], name="the recipe") if payload["recipe"] else None
    return _to_plain(_look(repo.config, recipe, int(payload["seed"])))


def _to_plain(seen: Seen) -> dict[str, Any]:
    config = None
    if seen.config is not None:
        reads = {n: None if r is None else sorted(r) for n, r in _reads(seen.config).items()}
        config = asdict(seen.config) | {"text": _jsonable(seen.config.text)} | reads
    behaviour = None
    if seen.behaviour is not None:
        b = seen.behaviour
        behaviour = {"proofs": {n: asdict(p) for n, p in b.proofs.items()}, "probes": b.probes}
        behaviour |= {"functions": b.functions, "ports": b.ports}
    structure = asdict(seen.structure) if seen.structure is not None else None
    return {"config": config, "structure": structure, "behaviour": behaviour, "warnings": seen.warnings}


def _from_plain(said: Mapping[str, Any]) -> Seen:
    seen = Seen(warnings=[str(w) for w in said["warnings"]])
    if (config := said["config"]) is not None:
        reads = {n: None if config[n] is None else frozenset(config[n]) for n in ("text_reads", "whole_reads")}
        seen.config = ReferenceConfig(**(config | reads))
    if (structure := said["structure"]) is not None:
        modules = tuple(
            Module(m["path"], m["class_name"], tuple((n, tuple(shape)) for n, shape in m["weights"]))
            for m in structure["modules"]
        )
        seen.structure = Structure(**(structure | {"modules": modules}))
    if (b := said["behaviour"]) is not None:
        proofs = {
            n: Proof(**(p | {name: tuple(p[name]) for name in ("probes", "wrong")})) for n, p in b["proofs"].items()
        }
        ports = {place: tuple(shapes) for place, shapes in b["ports"].items()}
        seen.behaviour = Behaviour(proofs, tuple(b["probes"]), functions=tuple(b["functions"]), ports=ports)
    return seen


def _reads(config: ReferenceConfig) -> dict[str, frozenset[str] | None]:
    return {"text_reads": config.text_reads, "whole_reads": config.whole_reads}


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(v) for v in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
