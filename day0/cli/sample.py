"""day0 sample: run the package on a prompt."""

from typing import Annotated, Literal

import typer

from day0.cli.common import Model, WorkspaceOption, command, warn_before
from day0.cli.output import Output


@command
def sample(
    out: Output,
    repo: Model = None,
    workspace: WorkspaceOption = None,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="The prompt, taken as it is")] = None,
    prompt_ids: Annotated[str | None, typer.Option(metavar="1,2,3", help="The prompt as token ids")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="At most so many new tokens")] = 64,
    dtype: Annotated[
        Literal["float64", "float32", "bfloat16", "float16"] | None, typer.Option(help="Default: the plan's")
    ] = None,
) -> None:
    """Continue a prompt greedily with the generated package

    A stop token of the model's generation config ends the continuation and is included.

    Example: day0 sample demo --prompt "def add(a, b):" --max-tokens 16
    """
    from day0.pipeline import RunOptions, open_line, sample

    if (prompt is None) == (prompt_ids is None):
        raise typer.BadParameter("give one of --prompt and --prompt-ids")
    given = None if prompt_ids is None else _parse_ids(prompt_ids)
    line = open_line(repo, RunOptions(), workspace)
    warn_before(out, line, None)
    ids = line.repo.tokenizer.encode(prompt or "") if given is None else given
    with out.progress("running the package"):
        sampled = sample(line, ids, max_tokens=max_tokens, dtype=dtype)
    for label in sampled.labels:
        out.warn(f"this package has {label}")
    tokens = [{"id": i, "logprob": p} for i, p in zip(sampled.ids, sampled.logprobs, strict=True)]
    out.document(
        {"prompt_ids": ids, "text": sampled.text, "tokens": tokens, "dtype": sampled.dtype, "labels": sampled.labels}
    )
    out.value(sampled.text if sampled.text is not None else ",".join(str(i) for i in sampled.ids))
    out.detail(f"token ids: {','.join(str(i) for i in sampled.ids)}")


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--prompt-ids {text}: write token ids as 1,2,3") from None
