"""day0 schema: the JSON Schemas of the files that day0 reads and writes."""

from typing import Annotated, Any

import typer

from day0.cli.common import command
from day0.cli.output import Output


@command
def schema(
    out: Output, name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Which; default: list them")] = None
) -> None:
    """Print the JSON Schema of an artifact, of a recipe or of a device

    Example: day0 schema inventory > inventory.schema.json
    """
    import difflib

    from day0.errors import Day0Error

    known = _schemas()
    if name is None:
        rows = [{"schema": key, "file": getattr(model, "FILE", f"{key} YAML")} for key, model in known.items()]
        out.table(rows)
        out.document(rows)
        if out.quiet:
            out.value("\n".join(known))
        return
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        suggestion = f"did you mean {near[0]}? " if near else ""
        raise Day0Error(f"no schema {name!r}", hint=f"{suggestion}known: {', '.join(known)}")
    out.json(known[name].model_json_schema())


def _schemas() -> dict[str, Any]:
    from day0.artifacts.alignment import Alignment
    from day0.artifacts.inventory import Inventory
    from day0.artifacts.plan import Plan
    from day0.check.baseline import Baseline
    from day0.language.recipe import Recipe
    from day0.mapping.device import Device

    return {
        "inventory": Inventory,
        "plan": Plan,
        "alignment": Alignment,
        "baseline": Baseline,
        "recipe": Recipe,
        "device": Device,
    }
