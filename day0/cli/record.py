"""day0 record: the script that records a model on the training side."""

from pathlib import Path
from typing import Annotated

import typer

from day0.cli.common import check_output, command
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

    check_output(file)
    script = files("day0.align").joinpath("record.py").read_text(encoding="utf-8")
    if file is not None:
        write_atomically(file, script.encode())
    out.document({"script": script})
    out.value(script.rstrip() if file is None else str(file))
