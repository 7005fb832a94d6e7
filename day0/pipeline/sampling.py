"""Running the package of a line on prompts: on one with the plain runner, on many through the engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from day0.artifacts.plan import Plan
from day0.errors import Day0Error
from day0.pipeline.line import Line, refuse_without_weights
from day0.pipeline.options import DType
from day0.pipeline.prompts import Asked
from day0.repo.tokenizer import TOKENIZER, Tokenizer, eos_ids

if TYPE_CHECKING:
    import torch

    from day0.engine.engine import Engine
    from day0.engine.request import Request
    from day0.kernels.interface.package import Package

# Of all prompts of a batch together: states of prompts' beginnings, for those that begin alike.
_CHECKPOINTS = 16
_STEP_TOKENS = 2_048


@dataclass(frozen=True)
class Sample:
    """A greedy continuation. `text` is None for a model without a tokenizer."""

    ids: list[int]
    logprobs: list[float]
    text: str | None
    dtype: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class BatchSample:
    """One prompt's continuation, and why it ended: `finish` is stop, length or error."""

    prompt_ids: tuple[int, ...]
    ids: list[int]
    logprobs: list[float | None]
    text: str | None
    finish: str
    error: str | None


@dataclass(frozen=True)
class Batch:
    """Continuations in the order of their prompts, made while they are iterated over."""

    samples: Iterator[BatchSample]
    dtype: str
    labels: tuple[str, ...]


def sample(line: Line, ids: list[int], *, max_tokens: int, dtype: DType | None = None) -> Sample:
    """Continue token ids greedily with the package.

    Raises Day0Error: no package, ids outside the vocabulary, a tokenizer that does not load.
    """
    import torch

    from day0.align.layer_by_layer import hollow_package
    from day0.engine.package import load_package
    from day0.engine.runner import Runner, check_prompt
    from day0.engine.threads import threads_for

    package = line.package()
    refuse_without_weights(line.repo, package.folder, "sample")
    tokenizer = line.repo.tokenizer if TOKENIZER in line.repo.file_names else None
    check_prompt(hollow_package(package.folder).layout(), ids, more=max_tokens)
    stop = eos_ids(line.repo.generation_config, line.repo.config)
    chosen = dtype or Plan.read(package.folder).dtype
    model = load_package(package.folder, line.repo, dtype=getattr(torch, chosen))
    runner = Runner(model, sequences=1, tokens=len(ids) + max_tokens)
    with threads_for(sum(p.numel() for p in model.parameters())):
        greedy = runner.greedy(ids, count=max_tokens, stop=stop)
    text = tokenizer.decode(greedy.ids) if tokenizer is not None else None
    labels = (*package.labels, *model.stand_in_labels())
    return Sample(greedy.ids, greedy.logprobs, text, chosen, labels)


def sample_batch(line: Line, prompts: Sequence[Asked], *, max_running: int, dtype: DType | None = None) -> Batch:
    """Continue all prompts, `max_running` of them at a time.

    Raises Day0Error before the weights are read: as `sample`, and for a prompt that does not fit, naming its line.
    """
    import torch

    from day0.align.layer_by_layer import hollow_package
    from day0.engine.package import load_package
    from day0.engine.runner import check_prompt

    package = line.package()
    refuse_without_weights(line.repo, package.folder, "sample")
    tokenizer = line.repo.tokenizer if TOKENIZER in line.repo.file_names else None
    layout = hollow_package(package.folder).layout()
    for asked in prompts:
        try:
            check_prompt(layout, list(asked.ids), more=asked.sampling.max_tokens)
        except Day0Error as error:
            raise Day0Error(f"{asked.where}: {error.message}", hint=error.hint) from error
    chosen = dtype or Plan.read(package.folder).dtype
    model = load_package(package.folder, line.repo, dtype=getattr(torch, chosen))
    engine = _engine_for(model, prompts, running=min(max_running, len(prompts)), dtype=getattr(torch, chosen))
    samples = _run(engine, prompts, tokenizer, parameters=sum(p.numel() for p in model.parameters()))
    return Batch(samples, chosen, (*package.labels, *model.stand_in_labels()))


def _engine_for(model: "Package", prompts: Sequence[Asked], *, running: int, dtype: "torch.dtype") -> "Engine":
    """Memory for the longest `running` prompts and their continuations: none of them ever waits for another's."""
    from day0.engine.engine import Engine
    from day0.engine.memory.store import NULL_PAGE, NULL_SLOT, Store, pages_of

    longest = sorted((pages_of(len(p.ids) + p.sampling.max_tokens) for p in prompts), reverse=True)[:running]
    store = Store(
        model.layout(),
        pages=NULL_PAGE + 1 + sum(longest),
        slots=NULL_SLOT + 1 + running + _CHECKPOINTS,
        dtype=dtype,
    )
    return Engine(model, store, max_running=running, step_tokens=_STEP_TOKENS)


def _run(
    engine: "Engine", prompts: Sequence[Asked], tokenizer: Tokenizer | None, *, parameters: int
) -> Iterator[BatchSample]:
    """Step the engine as far as the next continuation in order needs it."""
    from day0.engine.request import Request
    from day0.engine.threads import threads_for

    requests = [Request(asked.ids, asked.sampling) for asked in prompts]
    for asked, request in zip(prompts, requests, strict=True):
        try:
            engine.add(request)
        except Day0Error as error:
            raise Day0Error(f"{asked.where}: {error.message}", hint=error.hint) from error
    with threads_for(parameters):
        for request in requests:
            while request.finished is None:
                engine.step()
            yield _of_request(request, tokenizer)


def _of_request(request: "Request", tokenizer: Tokenizer | None) -> BatchSample:
    return BatchSample(
        request.prompt,
        request.output,
        [drawn.logprob for drawn in request.drawn],
        tokenizer.decode(request.output) if tokenizer is not None else None,
        request.finished or "error",
        request.error,
    )
