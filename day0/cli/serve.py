"""day0 serve: the package behind an HTTP API."""

import contextlib
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from day0.cli.common import Model, WorkspaceOption, command, warn_before
from day0.cli.output import Output

if TYPE_CHECKING:
    from day0.serve.load import Loaded
    from day0.serve.service import Service


@command
def serve(
    out: Output,
    repo: Model = None,
    workspace: WorkspaceOption = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one")] = 8000,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's name for clients; default: its own")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="API keys, one a line; DAY0_API_KEYS adds to them")
    ] = None,
    dtype: Annotated[
        Literal["float64", "float32", "bfloat16", "float16"] | None, typer.Option(help="Default: the plan's")
    ] = None,
    run_on: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where the package runs")] = "cpu",
    max_running: Annotated[int, typer.Option(min=1, help="Answers that are made at the same time")] = 8,
    max_waiting: Annotated[int, typer.Option(min=0, help="Answers that wait beyond those; others get a 429")] = 64,
    memory_tokens: Annotated[
        int, typer.Option(min=64, help="Tokens that the memory holds, of all answers and kept prompts together")
    ] = 32_768,
    checkpoints: Annotated[int, typer.Option(min=0, help="States kept for prompts that begin alike")] = 64,
    draft_tokens: Annotated[int, typer.Option(min=0, max=16, help="Speculate by prompt lookup; 0: not")] = 0,
    memory_mib: Annotated[
        int | None, typer.Option(min=1, help="What weights and memory may take; default: what the device has free")
    ] = None,
    max_prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Of one prompt")] = None,
    status_s: Annotated[
        float, typer.Option(min=0, help="Seconds between status lines, where stderr is no terminal; 0: none")
    ] = 30.0,
    drain_s: Annotated[float, typer.Option(min=0, help="Seconds for answers under way when told to end")] = 30.0,
) -> None:
    """Serve the generated package over HTTP, as the OpenAI API does

    Completions, chat completions, models and tokenize; health, readiness and metrics. SIGTERM and Ctrl-C let answers
    under way come to their end. Logs are JSON lines on stderr; on a terminal a table below them shows what goes on.

    Example: day0 serve demo --port 8000
    """
    from day0.engine.threads import threads_for
    from day0.pipeline import RunOptions, open_line
    from day0.pipeline.serving import load_package_to_serve
    from day0.serve.keys import ApiKeys
    from day0.serve.limits import Limits
    from day0.serve.load import MemorySize
    from day0.serve.logs import log_to
    from day0.serve.server import Server, listen
    from day0.serve.server import serve as run_server
    from day0.serve.service import Service

    line = open_line(repo, RunOptions(), workspace)
    warn_before(out, line, None)
    keys = ApiKeys.found(api_key_file)
    size = MemorySize(
        max_running=max_running,
        tokens=memory_tokens,
        checkpoints=checkpoints,
        draft_tokens=draft_tokens,
        device_bytes=None if memory_mib is None else memory_mib * 2**20,
    )
    limits = Limits(waiting=max_waiting, prompt_tokens=max_prompt_tokens, drain_s=drain_s)
    # Before the weights: whoever may not listen there need not wait for them.
    listening = listen(host, port)
    with listening:
        with out.progress("loading the package"):
            loaded = load_package_to_serve(line, name=name or line.repo.name, dtype=dtype, size=size, device=run_on)
        _say_what_is_served(out, loaded)
        if not keys and not _is_loopback(host):
            out.warn(f"no API key is set: whoever reaches {host} can use this server")
        at = f"http://{_in_url(host)}:{listening.getsockname()[1]}"

        def ready() -> None:
            out.document({"url": at, "model": loaded.served.name, "labels": list(loaded.labels)})
            out.value(at)

        service = Service(loaded.served, limits)
        with threads_for(loaded.parameters), _status(out, service, status_s):
            # Within: what is logged from here on stands above the table.
            log_to(verbose=out.verbose)
            run_server(Server(service, keys, ready=ready), listening)
    out.note("ended")


def _status(out: Output, service: "Service", every_s: float) -> contextlib.AbstractContextManager[None]:
    from day0.serve.status import live_table, log_lines

    console = None if out.quiet else out.live
    if console is not None:
        return live_table(service, console)
    return log_lines(service, every_s) if every_s and not out.quiet else contextlib.nullcontext()


def _say_what_is_served(out: Output, loaded: "Loaded") -> None:
    for label in loaded.labels:
        out.warn(f"this package has {label}")
    if loaded.served.known is None:
        out.warn("no answer of this model is known for sure: /health says only that the engine runs")
    if loaded.served.tokenizer is None:
        out.warn("the model has no tokenizer: it takes and gives token ids")
    for text in loaded.budget.lines():
        out.note(text)
    for text in loaded.budget.warnings():
        out.warn(text)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
