"""The words for a plan and its memory forecast."""

from day0.artifacts.plan import MemoryForecast
from day0.cli.summary import memory_lines, plan_words
from day0.mapping import MapOptions, load_device, run
from tests.mapping.inventories import PRODUCED_BY, inventory, operator

NORM = {"dim": 8, "eps": 1e-6}
KNOWN = MemoryForecast(
    device_bytes=10**10,
    weights_bytes=2000,
    kv_bytes_per_token=4.0,
    state_bytes_per_sequence=8,
    workspace_bytes=16,
    fits=True,
    longest_context=512,
    sequences_at={"512": 3},
    formula="in numbers",
)


def plan_of(*operators, recipe="r"):
    return run(inventory(operators, recipe=recipe), load_device("h200"), MapOptions(), PRODUCED_BY)


def test_what_is_known_is_told():
    assert memory_lines(KNOWN) == [
        "memory: fits; weights 2kB, 4B a token, 8B a sequence, workspace 16B, of 10GB",
        "longest context: 512 tokens; sequences that fit: 3 of 512",
        "how: in numbers",
    ]


def test_what_keeps_nothing_has_no_bound():
    held = KNOWN.model_copy(update={"longest_context": None, "sequences_at": {}, "fits": False})
    assert memory_lines(held)[0].startswith("memory: does not fit; ")
    assert memory_lines(held)[1] == "longest context: unbounded; sequences that fit: any number"


def test_without_a_recipe_only_the_weights_are_told():
    made = plan_of(operator("m", "Linear", {}, status="new", parameters=1000), recipe="")
    first, how = memory_lines(made.memory)
    assert first == "memory: the weights fit; weights 2kB, of 141GB; what a token and a sequence take is not known"
    assert how == f"how: {made.memory.formula}"
    words = plan_words(made)
    assert "; 0 operators on fallback, 1 that nothing computes; the weights fit: weights 2kB" in words


def test_a_plan_that_computes_everything_says_nothing_of_nothing():
    assert "nothing computes" not in plan_words(plan_of(operator("n", "norm", NORM)))
