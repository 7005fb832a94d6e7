"""A generated package, made ready to be served."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from day0.artifacts.chat import Chat
from day0.artifacts.layout import PAGE_TOKENS, Layout
from day0.artifacts.plan import Plan
from day0.engine.drafting import PromptLookup
from day0.engine.engine import Engine
from day0.engine.memory.budget import Budget, Demand, bytes_here, divide, measured_workspace
from day0.engine.memory.store import Store
from day0.engine.package import load_package
from day0.engine.runner import Runner
from day0.engine.speculation import Speculation
from day0.engine.threads import threads_for
from day0.errors import Day0Error
from day0.kernels.interface.package import Package
from day0.repo import ModelRepo
from day0.repo.tokenizer import TOKENIZER, Tokenizer, eos_ids
from day0.serve.health import KnownAnswer
from day0.serve.service import Served

_KNOWN_TEXT = "The quick brown fox jumps over the lazy dog. def add(a, b): return"
_KNOWN_TOKENS = 8
# A token counts as known where no other comes closer to the best logit than rounding in another order may move it.
_MARGIN_ULPS = 64


@dataclass(frozen=True)
class MemorySize:
    """`tokens` of all sequences together, of those that run and those kept for reuse; `checkpoints`: states kept for
    reuse, of a model that has any. `device_bytes`: what all of it and the weights may take, None for what is there."""

    max_running: int = 8
    tokens: int = 32_768
    checkpoints: int = 64
    draft_tokens: int = 0  # proposed by prompt lookup, 0 for no speculation
    step_tokens: int = 2_048  # of one step
    device_bytes: int | None = None


@dataclass(frozen=True)
class Loaded:
    """A model to serve, `labels` that its answers carry, and how its memory was divided."""

    served: Served
    budget: Budget
    labels: tuple[str, ...] = field(default=())
    parameters: int = 0


def load_served(
    folder: Path,
    repo: ModelRepo,
    *,
    name: str,
    dtype: torch.dtype,
    size: MemorySize,
    chat: Chat,
    device: str = "cpu",
) -> Loaded:
    """The package in `folder` with its weights, an engine around it, and an answer that is known.

    The known answer comes from the plain runner, which shares neither scheduler nor memory with the engine. Raises
    Day0Error: as `load_package` does, or a memory that is too small or does not fit the device.
    """
    if size.tokens < PAGE_TOKENS or size.max_running < 1:
        raise Day0Error(
            f"memory for {size.tokens} tokens and {size.max_running} sequences", hint=f"give at least {PAGE_TOKENS}, 1"
        )
    model = load_package(folder, repo, dtype=dtype, device=device)
    tokenizer = repo.tokenizer if TOKENIZER in repo.file_names else None
    stop_ids = tokenizer.eos_ids if tokenizer is not None else eos_ids(repo.generation_config, repo.config)
    parameters = sum(p.numel() for p in model.parameters())
    with threads_for(parameters):
        known = known_answer(model, tokenizer, device=device)
    layout = model.layout()
    budget = _budget(folder, model, dtype=dtype, size=size, device=device)
    try:
        store = Store(layout, pages=budget.store_pages, slots=budget.store_slots, dtype=dtype, device=device)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        raise Day0Error(
            f"no memory for {size.tokens} tokens on {device}", hint="give smaller --memory-tokens or --max-running"
        ) from error
    engine = Engine(
        model,
        store,
        max_running=size.max_running,
        step_tokens=size.step_tokens,
        drafter=PromptLookup() if size.draft_tokens else None,
        draft_tokens=size.draft_tokens,
        speculation=Speculation(),
        device=device,
    )
    return Loaded(
        Served(name, engine, tokenizer, stop_ids, known, size.max_running, chat),
        budget,
        tuple(model.stand_in_labels()),
        parameters=parameters,
    )


def _budget(folder: Path, model: Package, *, dtype: torch.dtype, size: MemorySize, device: str) -> Budget:
    """What is asked for, cut to what there is. Raises Day0Error when no longest request fits."""
    layout, plan = model.layout(), Plan.read(folder)
    longest = min(size.tokens, layout.max_positions or size.tokens)
    held = [*model.parameters(), *model.buffers()]
    weights = sum(t.numel() * t.element_size() for t in held)
    there = bytes_here(device) if size.device_bytes is None else size.device_bytes
    demand = Demand(size.max_running, size.tokens, size.checkpoints, longest, drafts=size.draft_tokens > 0)
    # Before the step that is measured: where the rest does not fit, that one must not run out of memory.
    divide(layout, demand, dtype=dtype, device_bytes=there, weights=weights, workspace=0)
    if torch.device(device).type == "cuda":
        most = min(size.step_tokens, longest)
        workspace = measured_workspace(
            model, step_tokens=most, dtype=dtype, device=device, vocab_size=layout.vocab_size
        )
    else:
        # The plan's estimate, of its own largest step.
        planned: torch.dtype = getattr(torch, plan.dtype)
        workspace = (plan.memory.workspace_bytes or 0) * dtype.itemsize // planned.itemsize
    return divide(layout, demand, dtype=dtype, device_bytes=there, weights=weights, workspace=workspace)


def known_answer(model: Package, tokenizer: Tokenizer | None, *, device: str) -> KnownAnswer | None:
    """What the plain runner answers greedily, up to the first token that rounding could change; None where that is the
    very first."""
    prompt = _known_prompt(model.layout(), tokenizer)
    runner = Runner(model, sequences=1, tokens=len(prompt) + _KNOWN_TOKENS, device=device)
    greedy = runner.greedy(list(prompt), count=_KNOWN_TOKENS)
    sure: list[int] = []
    for token, margin, logits in zip(greedy.ids, greedy.margins, greedy.logits, strict=True):
        if margin <= _MARGIN_ULPS * torch.finfo(runner.dtype).eps * float(logits.abs().max()):
            break
        sure.append(token)
    return KnownAnswer(prompt, tuple(sure)) if sure else None


def _known_prompt(layout: Layout, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    most = _KNOWN_TOKENS * 4 if layout.max_positions is None else max(1, layout.max_positions - _KNOWN_TOKENS)
    ids = list(range(1, 17)) if tokenizer is None else tokenizer.encode(_KNOWN_TEXT)
    # Ids past the embedding are those of special tokens that the model does not know.
    return tuple(i % layout.vocab_size for i in ids[:most]) or (0,)
