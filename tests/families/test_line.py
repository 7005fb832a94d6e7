"""The whole line holds on every family. All of them with two seeds are evidence; one family runs here and now."""

from tests.evidence import evidence
from tests.families.line import FAMILIES, SEEDS, run_line

# Exactness: both in float64, relative L2 (docs/architecture.md).
EXACT = 1e-10


def check(result):
    assert result["verdict"] == "holds", result
    assert result["proved"] == result["operators"] > 20
    assert result["proof_error"] <= EXACT and result["exactness_error"] <= EXACT
    assert result["unclaimed_tensors"] == 0
    assert all(text.startswith("holds: ") for text in result["gates"].values()), result["gates"]
    assert {"exactness", "precision float32", "precision bfloat16", "greedy", "invariance"} <= set(result["gates"])
    assert all("equal" in text or "tie" in text for text in result["greedy"])


def test_one_family_from_repo_to_alignment():
    check(run_line("qwen3_5", 0))


def test_every_family_with_two_seeds_held():
    parts = evidence.read("families")["parts"]
    assert set(parts) == {f"{family}, seed {seed}" for family in FAMILIES for seed in SEEDS}
    for part in parts.values():
        check(part)
