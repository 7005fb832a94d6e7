"""The package against itself, through the engine: however the same tokens are run, logits and state are the same.

All in float64. The cells change the shapes of the matrix products (chunks, packing, one token at a time), so that their
results differ by rounding; a stale window, a dropped state or a wrong page differs by far more.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from day0.align.exactness import BOUND
from day0.artifacts.alignment import Checksum, InvarianceCell
from day0.engine.runner import Runner
from day0.engine.runner import Sequence as Running
from day0.engine.state import State, state_of
from day0.kernels.interface.package import Package
from day0.reference.match import error

GATE = "invariance"
CHUNKS = (1, 2, 3, 63, 64, 65)
_ODD_CHUNKS = (5, 1, 31, 2, 17)
_DECODED = 19
_SHORT = 37  # tokens run in chunks of 1, 2 and 3: enough for every state and more than any window

Outcome = tuple[Tensor, State]


def check_invariance(
    package: Package, ids: Sequence[int], *, bound: float = BOUND
) -> tuple[list[InvarianceCell], list[Checksum]]:
    """Every cell against one whole prefill alone; and checksums of the state that this prefill leaves."""
    ids = list(ids)
    short = ids[:_SHORT]
    others = [ids[3:40], ids[1:2], ids[7:90]]
    cells: dict[str, tuple[list[int], Callable[[list[int]], Outcome]]] = {
        f"chunks of {size}": (short if size <= 3 else ids, _chunked(package, [size])) for size in CHUNKS
    }
    cells["odd chunks"] = (ids, _chunked(package, list(_ODD_CHUNKS)))
    cells["cached decode"] = (ids, lambda run: _decoded(package, run))
    cells["packed with others"] = (ids, lambda run: _packed(package, run, others, [len(run)]))
    cells["packed, in chunks"] = (ids, lambda run: _packed(package, run, others, [29, 1, 41]))
    cells["in a used slot"] = (ids, lambda run: _reused(package, run, others[0]))
    plain = {len(run): _alone(package, run, []) for run in (ids, short)}
    found = [_cell(name, compute(run), plain[len(run)], bound) for name, (run, compute) in cells.items()]
    return found, checksums(plain[len(ids)][1])


def checksums(state: State) -> list[Checksum]:
    """Norm and projection on a fixed random vector of each component."""
    return [Checksum(component=name, norm=norm, projection=product) for name, norm, product in _sums(state)]


def _sums(state: State) -> Iterator[tuple[str, float, float]]:
    for name, tensor in state.items():
        flat = tensor.double().reshape(-1).nan_to_num(nan=0.0)
        generator = torch.Generator().manual_seed(flat.numel())
        direction = torch.randn(flat.numel(), generator=generator, dtype=torch.float64)
        yield name, float(flat.norm()), float(flat @ direction)


def _state(runner: Runner, sequence: Running) -> State:
    return state_of(runner.layout, runner.memory, slot=sequence.slot, pages=sequence.pages, length=sequence.length)


def _alone(package: Package, ids: list[int], chunks: list[int]) -> Outcome:
    runner = Runner(package, sequences=2, tokens=len(ids), poison=True)
    sequence, logits = runner.prefill(ids, chunks=chunks)
    return logits, _state(runner, sequence)


def _chunked(package: Package, sizes: list[int]) -> Callable[[list[int]], Outcome]:
    return lambda ids: _alone(package, ids, sizes)


def _decoded(package: Package, ids: list[int]) -> Outcome:
    runner = Runner(package, sequences=2, tokens=len(ids), poison=True)
    sequence, logits = runner.prefill(ids[:-_DECODED])
    rows = [logits, *(runner.step([sequence], [[token]], "decode") for token in ids[-_DECODED:])]
    return torch.cat(rows), _state(runner, sequence)


def _packed(package: Package, ids: list[int], others: list[list[int]], sizes: list[int]) -> Outcome:
    """The sequence in the middle of others of other lengths, all advanced in every step while they have tokens."""
    texts = [others[0], others[1], ids, *others[2:]]
    own = 2
    runner = Runner(package, sequences=len(texts) + 1, tokens=max(map(len, texts)), poison=True)
    running = [runner.open() for _ in texts]
    rows: list[Tensor] = []
    turn = 0
    while any(s.length < len(text) for s, text in zip(running, texts, strict=True)):
        size = sizes[min(turn, len(sizes) - 1)]
        active = [i for i, text in enumerate(texts) if running[i].length < len(text)]
        pieces = [texts[i][running[i].length : running[i].length + size] for i in active]
        logits = runner.step([running[i] for i in active], pieces)
        for i, part in zip(active, logits.split([len(piece) for piece in pieces]), strict=True):
            rows += [part] if i == own else []
        turn += 1
    return torch.cat(rows), _state(runner, running[own])


def _reused(package: Package, ids: list[int], other: list[int]) -> Outcome:
    """Memory of one sequence's size, which another sequence has used before."""
    runner = Runner(package, sequences=1, tokens=len(ids), poison=True)
    before, _ = runner.prefill(other)
    runner.close(before)
    sequence, logits = runner.prefill(ids)
    return logits, _state(runner, sequence)


def _cell(name: str, outcome: Outcome, plain: Outcome, bound: float) -> InvarianceCell:
    logits, state = outcome
    wrong = error(logits, plain[0])
    errors = {component: _state_error(state[component], expected) for component, expected in plain[1].items()}
    worst = max(errors, key=lambda component: errors[component], default="")
    state_wrong = errors.get(worst, 0.0)
    return InvarianceCell(
        name=name,
        error=wrong,
        state_error=state_wrong,
        worst_state=worst,
        bound=bound,
        verdict="holds" if wrong <= bound and state_wrong <= bound else "does not hold",
    )


def _state_error(computed: Tensor, expected: Tensor) -> float:
    """Relative L2; what neither run wrote is NaN in both and counts as equal."""
    if not computed.is_floating_point():
        return 0.0 if torch.equal(computed, expected) else float("inf")
    unwritten = computed.isnan() & expected.isnan()
    return error(computed.masked_fill(unwritten, 0.0), expected.masked_fill(unwritten, 0.0))
