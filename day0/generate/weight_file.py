"""weights.json: where every weight of a package stands in the checkpoint."""

import json
from typing import Any

from day0.language.program import Program


def weight_file(program: Program) -> dict[str, Any]:
    """Keys map (canonical weight path -> resolved source), float32 (paths kept so), left_out (glob -> reason)."""
    return {
        "map": {f"{use.path}.{weight}": source for use in program.uses() for weight, source in use.weights.items()},
        "float32": [f"{use.path}.{weight}" for use in program.uses() for weight in sorted(use.float32)],
        "left_out": dict(program.left_out),
    }


def dump_weight_file(program: Program) -> str:
    return json.dumps(weight_file(program), indent=1) + "\n"
