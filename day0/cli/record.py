"""day0 record: the script that records a model on the training side."""

from pathlib import Path
from typing import Annotated

import typer

from day0.cli.common import command
from day0.cli.output import Output


@command
def record(
    out: Output, file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Where to; default: stdout")] = None
) -> None:
    """Write the standalone script that records any torch model for `day0 align --golden`

    It needs torch and safetensors only; its own text says how to run it and what it writes.

    Example: day0 record record.py
    """
    from importlib.resources import files

    from day0.artifacts.base import write_atomically

    script = files("day0.align").joinpath("record.py").read_text(encoding="utf-8")
    out.document({"script": script})
    if file is None:
        out.value(script.rstrip())
    else:
        write_atomically(file, script.encode())
        out.value(str(file))
