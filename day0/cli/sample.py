"""day0 sample: run the package on a prompt."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from day0.cli.common import Model, WorkspaceOption, command, warn_before
from day0.cli.output import Output
from day0.errors import Day0Error

if TYPE_CHECKING:
    from day0.pipeline import Line
    from day0.pipeline.options import DType


@command
def sample(
    out: Output,
    repo: Model = None,
    workspace: WorkspaceOption = None,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="The prompt, taken as it is")] = None,
    prompt_ids: Annotated[str | None, typer.Option(metavar="1,2,3", help="The prompt as token ids")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A prompt a line; in a .jsonl file an object a line, with its own options"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="At most so many new tokens")] = 64,
    max_running: Annotated[int, typer.Option(min=1, help="Prompts of a file that run at the same time")] = 8,
    dtype: Annotated[
        Literal["float64", "float32", "bfloat16", "float16"] | None, typer.Option(help="Default: the plan's")
    ] = None,
) -> None:
    """Continue a prompt greedily with the generated package

    A stop token of the model's generation config ends the continuation and is included. A file of prompts goes through
    the engine, many at a time, and gives a line for each in the file's order: of text, with line breaks as \\n, or of
    JSON under --json.

    Example: day0 sample demo --prompt "def add(a, b):" --max-tokens 16
    """
    from day0.pipeline import RunOptions, open_line, sample

    if sum(given is not None for given in (prompt, prompt_ids, prompts)) != 1:
        raise typer.BadParameter("give one of --prompt, --prompt-ids and --prompts")
    given = None if prompt_ids is None else _parse_ids(prompt_ids)
    line = open_line(repo, RunOptions(), workspace)
    warn_before(out, line, None)
    if prompts is not None:
        _sample_file(out, line, prompts, max_tokens=max_tokens, max_running=max_running, dtype=dtype)
        return
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


def _sample_file(
    out: Output, line: "Line", path: Path, *, max_tokens: int, max_running: int, dtype: "DType | None"
) -> None:
    from day0.pipeline import read_prompts, sample_batch
    from day0.repo.tokenizer import eos_ids

    stop = eos_ids(line.repo.generation_config, line.repo.config)
    asked = read_prompts(
        path, max_tokens=max_tokens, stop_ids=stop, encode=lambda text: line.repo.tokenizer.encode(text)
    )
    with out.progress(f"running the package on {len(asked)} prompts"):
        batch = sample_batch(line, asked, max_running=max_running, dtype=dtype)
        for label in batch.labels:
            out.warn(f"this package has {label}")
        failed = 0
        for number, one in enumerate(batch.samples):
            tokens = [{"id": i, "logprob": p} for i, p in zip(one.ids, one.logprobs, strict=True)]
            out.json_line(
                {
                    "index": number,
                    "prompt_ids": list(one.prompt_ids),
                    "text": one.text,
                    "tokens": tokens,
                    "finish_reason": one.finish,
                    "error": one.error,
                    "dtype": batch.dtype,
                    "labels": batch.labels,
                }
            )
            out.value(_one_line(one.text) if one.text is not None else ",".join(str(i) for i in one.ids))
            if one.error is not None:
                failed += 1
                out.warn(f"{asked[number].where}: {one.error}")
    if failed:
        raise Day0Error(f"{failed} of {len(asked)} prompts failed", hint="the warnings above say which and why")


def _one_line(text: str) -> str:
    """A text in one line, so that the n-th line belongs to the n-th prompt; backslashes double, so that it can be
    undone."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--prompt-ids {text}: write token ids as 1,2,3") from None
