"""The package against itself: state that is lost, stale or mixed up shows in the cell that runs into it."""

import pytest
import torch

from day0.align.gates import invariance_gate
from day0.align.invariance import check_invariance, checksums

from .conftest import FAMILY

LENGTH = 131


@pytest.fixture
def ids():
    return torch.randint(0, 256, (LENGTH,), generator=torch.Generator().manual_seed(8)).tolist()


def failing(package, ids):
    cells, _ = check_invariance(package, ids)
    return {cell.name: cell for cell in cells if cell.verdict != "holds"}


def test_holds(exact_package, ids):
    cells, sums = check_invariance(exact_package, ids)
    assert invariance_gate("invariance", cells).verdict == "holds", FAMILY
    assert {f"chunks of {n}" for n in (1, 2, 3, 63, 64, 65)} < {cell.name for cell in cells}
    assert [s.component for s in sums] == [c.name for c in exact_package.layout().components]
    assert all(s.norm > 0 for s in sums)


def patched(package, name, change):
    operator = next(op for op in package.operators() if op.name == name)
    plain = operator.run
    operator.run = lambda *ports, **named: change(plain, ports, named)


def test_a_window_forgotten_between_steps(exact_package, ids):
    def forget(plain, ports, named):
        named["memory"][f"layers.0.qkv_conv.{'window'}"].zero_()
        return plain(*ports, **named)

    patched(exact_package, "layers.0.qkv_conv", forget)
    found = failing(exact_package, ids)
    assert {"chunks of 1", "chunks of 65", "cached decode", "packed, in chunks"} <= set(found)
    assert "packed with others" not in found and "in a used slot" not in found


def test_a_state_that_leaks_into_the_next_sequence(exact_package, ids):
    """A fresh sequence that starts from what its slot held."""

    def leak(plain, ports, named):
        state = named["memory"]["layers.0.delta.state"]
        before = state.nan_to_num(nan=0.0).sum(dim=tuple(range(1, state.dim())))[named["batch"].slots[0]]
        return plain(*ports, **named) + 1e-3 * before

    patched(exact_package, "layers.0.delta", leak)
    assert "in a used slot" in failing(exact_package, ids)


def test_a_sequence_that_reads_its_neighbour(exact_package, ids):
    def mix(plain, ports, named):
        out = plain(*ports, **named)
        return out + 1e-6 * out.mean() if named["batch"].sequences > 1 else out

    patched(exact_package, "layers.1.delta", mix)
    assert set(failing(exact_package, ids)) == {"packed with others", "packed, in chunks"}


def test_wrong_state_shows_although_the_logits_are_right(exact_package, ids):
    """What the last step leaves behind is read by nobody here."""

    def spoil(plain, ports, named):
        out = plain(*ports, **named)
        batch = named["batch"]
        if int(batch.context_lens[0]) > 0 and int(batch.positions[-1]) in (36, LENGTH - 1):
            named["memory"]["layers.2.delta.state"][batch.slots[0]] *= 1.001
        return out

    patched(exact_package, "layers.2.delta", spoil)
    cell = failing(exact_package, ids)["cached decode"]
    assert cell.error < 1e-12 and cell.state_error == pytest.approx(1e-3, rel=0.01)
    assert cell.worst_state == "layers.2.delta.state"


def test_checksums_tell_an_exchange_of_elements():
    tensor = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    [plain], [other] = checksums({"a": tensor}), checksums({"a": tensor.flip(0)})
    assert plain.norm == pytest.approx(other.norm) and plain.projection != pytest.approx(other.projection)
