"""Running the package of a line on a prompt."""

from dataclasses import dataclass

from day0.artifacts.plan import Plan
from day0.pipeline.line import Line, refuse_without_weights
from day0.pipeline.options import DType
from day0.repo.tokenizer import TOKENIZER, eos_ids


@dataclass(frozen=True)
class Sample:
    """A greedy continuation. `text` is None for a model without a tokenizer."""

    ids: list[int]
    logprobs: list[float]
    text: str | None
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
