"""The whole line on small random models of every family: what it says, as figures."""

import tempfile
import time
from pathlib import Path
from typing import Any

from day0.artifacts.alignment import Alignment
from day0.artifacts.inventory import Inventory
from day0.pipeline import RunOptions, open_line
from tests.builders.cache import tiny_repo
from tests.evidence.evidence import ROOT

FAMILIES = ("glm5_next", "qwen4_exp", "kimi_linear", "qwen3_next", "qwen3_5", "deepseek_v32", "olmo_hybrid")
SEEDS = (0, 1)


def run_line(family: str, seed: int) -> dict[str, Any]:
    """`day0 run` on one small model, with nothing but its defaults: verdict, proofs, gates, seconds."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / f"{family}.day0"
        line = open_line(str(tiny_repo(family, seed)), RunOptions(), workspace)
        outcome = line.run()
        inventory, alignment = Inventory.read(workspace), Alignment.read(workspace)
    return {
        "verdict": outcome.verdict,
        "operators": len(inventory.operators),
        "proved": sum(o.evidence.established == "proved" for o in inventory.operators),
        "proof_error": max(o.evidence.error or 0.0 for o in inventory.operators),
        "unclaimed_tensors": len(inventory.tensor_audit.unclaimed),
        "gates": {g.name: f"{g.verdict}: {g.detail}" for g in alignment.gates},
        "exactness_error": max(
            row.error for row in alignment.rows if row.gate == "exactness" and row.error is not None
        ),
        "greedy": [f"{cell.tokens} tokens, {cell.classified}" for cell in alignment.greedy],
        "excluded": [f"{e.cell}: {e.reason}" for e in alignment.exclusions],
        "line_seconds": round(time.monotonic() - started, 1),
    }


def depends_on(family: str) -> list[str]:
    """What decides a family's result: its recipe, its builder, the kinds in plain PyTorch, and the stages."""
    rooms = ("language", "reference", "decompose", "generate", "align", "engine")
    patterns = (
        f"recipes/{family}.yaml",
        "tests/builders/*.py",
        "tests/families/line.py",
        "kernels/**/*.py",
        "templates/*.j2",
        *(f"day0/{room}/*.py" for room in rooms),
    )
    found = {path for pattern in patterns for path in ROOT.glob(pattern)}
    kept = (path for path in found if not path.name.startswith("test_") and "triton" not in path.name)
    return sorted(str(path.relative_to(ROOT)) for path in kept)
