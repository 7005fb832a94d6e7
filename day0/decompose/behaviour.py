"""Behaviour: the shrunk reference is run and traced, and the program is held against what it computed."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from day0.decompose.attribute_grid import prove_program
from day0.decompose.interpret import build_weights
from day0.decompose.proof import Probe, Proof, index_trace
from day0.errors import Day0Error
from day0.language.program import Program, apply_recipe
from day0.language.recipe import Recipe
from day0.reference.config_watch import ConfigReads, watch_reads
from day0.reference.float64 import float64_arithmetic
from day0.reference.load import build_reference
from day0.reference.random_weights import randomise
from day0.reference.runner import ReferenceRunner
from day0.reference.shrink import PROMPT_TOKENS, shrink_config
from day0.reference.trace import Trace, functions_called, module_ports, trace
from day0.repo.model_repo import ModelRepo

CONTINUATION_TOKENS = 13
# Summation order alone leaves about 1e-15 per operator; a wrong eps of 1e-6 on values of size one leaves 1e-7.
TOLERANCE = 1e-10


@dataclass
class Behaviour:
    """What running the shrunk reference showed."""

    proofs: dict[str, Proof] = field(default_factory=dict)  # by operator name
    probes: tuple[str, ...] = ()
    # Keys that the reference read while it was built and run, by config class name.
    reads: ConfigReads = field(default_factory=ConfigReads)
    notes: tuple[str, ...] = ()
    # Without a recipe, what new operators are described by: the functions called, and shapes by module ("path:in").
    functions: tuple[str, ...] = ()
    ports: dict[str, tuple[str, ...]] = field(default_factory=dict)


def observe(config: Any, recipe: Recipe | None, *, seed: int = 0) -> Behaviour:
    """Shrink the reference, run it in float64 on three kinds of probes, and prove the recipe's operators.

    The probes: a prompt from the empty state; several tokens that continue it (a non-zero state); single tokens. Raises
    Day0Error when the reference cannot be shrunk or run, OSError when the disk does not hold it; a recipe that does not
    fit the shrunk model is a note.
    """
    small, model, notes, reads = _small_reference(config, seed)
    with tempfile.TemporaryDirectory(prefix="day0-") as folder:
        _save(model, folder)
        repo = ModelRepo.open(Path(folder))
        program: Program | None = None
        if recipe is not None:
            program = apply_recipe(recipe, repo.config, repo.tensors)
            weights = build_weights(program, repo.read_tensor)
    probes, traces, more = _record(model.double(), _tokens(small, seed), recipe)
    names = tuple(p.name for p in probes)
    if program is None or recipe is None:
        return Behaviour(
            probes=names,
            reads=reads,
            notes=(*notes, *more),
            functions=tuple(functions_called(traces)),
            ports=module_ports(traces[0]),
        )
    tolerance = max(TOLERANCE, recipe.reference.float64_leak)
    proofs = prove_program(program, weights, probes, tolerance=tolerance)
    return Behaviour(proofs, names, reads, (*notes, *more))


def _save(model: Any, folder: str) -> None:
    try:
        model.save_pretrained(folder)
    except SafetensorError as error:  # a full disk: the machine's failure, which must not pass for the model's
        raise OSError(f"cannot write the shrunk model in {folder}: {error}") from error


def _small_reference(config: Any, seed: int) -> tuple[Any, Any, list[str], ConfigReads]:
    failure: Day0Error | None = None
    for distinct in (True, False):
        try:
            small, notes = shrink_config(config, distinct=distinct)
            with watch_reads(small) as reads:
                model = build_reference(small)
                randomise(model, seed)
                ReferenceRunner(model).forward(torch.arange(3), use_cache=True)
            return small, model, [f"behaviour was watched on a small model: {'; '.join(notes)}"] if notes else [], reads
        except Day0Error as error:
            failure = error
        except (RuntimeError, ValueError, IndexError, TypeError, KeyError, AttributeError) as error:
            failure = Day0Error(
                f"the shrunk reference does not run: {' '.join(str(error).split())[:200]}",
                hint="decompose goes on without behaviour",
            )
    assert failure is not None
    raise failure


def _tokens(config: Any, seed: int) -> torch.Tensor:
    """Random ids, with an end-of-sequence id in the prompt: families that keep n-grams of tokens start afresh there."""
    text = config.get_text_config()
    generator = torch.Generator().manual_seed(seed + 1)
    count = PROMPT_TOKENS + CONTINUATION_TOKENS + 4
    ids = torch.randint(0, min(256, text.vocab_size), (count,), generator=generator)
    end = getattr(text, "eos_token_id", None)
    end = end[0] if isinstance(end, list) and end else end
    if isinstance(end, int) and 0 <= end < text.vocab_size:
        ids[PROMPT_TOKENS // 2] = end
    return ids


def _record(model: Any, ids: torch.Tensor, recipe: Recipe | None) -> tuple[list[Probe], list[Trace], list[str]]:
    """Trace the reference on each probe, its cache going from one to the next."""
    plans = [
        [("prompt", PROMPT_TOKENS), ("continuation", CONTINUATION_TOKENS), ("decode", 1), ("decode 2", 1)],
        [("prompt", PROMPT_TOKENS), ("decode", 1), ("decode 2", 1), ("decode 3", 1)],
    ]
    # A reference that is known not to continue with several tokens is not asked to.
    known = any("chunk" in check for check in (recipe.reference.fails if recipe is not None else ()))
    failure = ""
    for plan in plans[known:]:
        try:
            probes, traces = _run_plan(model, ids, plan)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            failure = " ".join(str(error).split())[:200]
            continue
        skipped = plan is plans[1]
        why = failure or "the recipe says so"
        notes = [f"the reference does not continue a prompt with several tokens ({why})"] if skipped else []
        return probes, traces, notes
    raise Day0Error(f"the shrunk reference does not run: {failure}", hint="decompose goes on without behaviour")


def _run_plan(model: Any, ids: torch.Tensor, plan: Sequence[tuple[str, int]]) -> tuple[list[Probe], list[Trace]]:
    runner = ReferenceRunner(model)
    probes: list[Probe] = []
    traces: list[Trace] = []
    cache, start = None, 0
    for name, count in plan:
        tokens = ids[start : start + count]
        call = partial(runner.forward, tokens, start, cache, use_cache=True)
        with float64_arithmetic():
            recorded, (_, cache) = trace(model, call)
        probes.append(
            Probe(f"{name} ({count} tokens from {start})", tuple(tokens.tolist()), index_trace(recorded), start)
        )
        traces.append(recorded)
        start += count
    return probes, traces
