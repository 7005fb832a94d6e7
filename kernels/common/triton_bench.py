"""Times kernels beside their floor and their peers, in one run, on inputs that the last-level cache does not hold."""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from day0.kernels.common.conformance import allowed_error, relative_l2

Run = Callable[[int], object]  # runs on the input set of that number

_L2_MULTIPLE = 4
_MIN_REPLAYS = 25
_MIN_SECONDS = 0.04


@dataclass(frozen=True)
class Floor:
    """The least a step must do: bytes through device memory, `written` of them writes, and operations of a product."""

    bytes: float
    flops: float = 0.0
    written: float = 0.0


@dataclass(frozen=True)
class Ceilings:
    """Measured on this device in this run: bytes per second of a copy (bytes read and written counted) and of a read
    alone, which is faster; bf16 operations per second of a matrix product."""

    copy: float
    read: float
    bf16_flops: float

    def floor_us(self, floor: Floor) -> float:
        """Microseconds: every byte written pairs with one that is read, at the rate of a copy, and what else is read
        comes at the rate of a read (writes alone at that of a copy); or the operations, where they take longer."""
        paired = min(2 * floor.written, floor.bytes)
        moving = paired / self.copy + (floor.bytes - paired) / self.read
        return max(moving, floor.flops / self.bf16_flops) * 1e6


@dataclass(frozen=True)
class Deviation:
    """How far a result is from what it should be, and how far it may be: relative L2, or a count of what is wrong."""

    error: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.error <= self.bound  # NaN does not hold


@dataclass(frozen=True)
class Prepared:
    """Input sets on the device, and what runs on them. `compare` runs `ours` on one set and holds it to its bound."""

    sets: int
    ours: Run
    floor: Floor
    compare: Callable[[], Deviation]
    peers: Mapping[str, Run] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """One row of the table. `prepare` makes inputs on the current CUDA device."""

    operator: str
    shape: str
    prepare: Callable[[], Prepared]
    goal: str = ""


def wrong(count: float) -> Deviation:
    """Of a count of wrong results, of which there may be none."""
    return Deviation(float(count), 0.0)


def deviation(*results: tuple[Tensor, Tensor, Tensor]) -> Deviation:
    """The worst of results (ours, the plain reference's, float64) of bfloat16 inputs, by the rule of `conformance`.

    The worst is the one that is furthest beyond its bound, or nearest to it; NaN is worse than any number.
    """
    found = []
    for ours, plain, exact in results:
        bound = allowed_error(relative_l2(plain, exact), torch.bfloat16)
        found.append(Deviation(relative_l2(ours, exact), bound))
    return max(found, key=lambda d: (math.isnan(d.error), not d.holds, d.error / d.bound))


def rotations(bytes_per_set: float) -> int:
    """How many input sets are needed so that none is still in L2 when its turn comes again (at least 2, at most 64)."""
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    return max(2, min(64, -(-_L2_MULTIPLE * l2 // max(int(bytes_per_set), 1))))


def measure_ceilings() -> Ceilings:
    """Medians over 2 GiB of random numbers, by kernels rather than by the copy engine, which is slower; the product is
    of two 8192 x 8192 bf16 matrices. The read is the faster of two reductions."""
    x = torch.randn(2**29, device="cuda")
    y = torch.empty_like(x)
    copy = time_us(lambda i: torch.neg(x, out=y), 1)[0]
    rows = x.view(2**16, 2**13)
    total, largest = torch.empty(2**16, device="cuda"), torch.empty((), device="cuda")
    read = min(
        time_us(lambda i: torch.sum(rows, dim=1, out=total), 1)[0],
        time_us(lambda i: torch.amax(x, dim=0, out=largest), 1)[0],
    )
    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16).unbind()
    out = torch.empty_like(a)
    product = time_us(lambda i: torch.mm(a, b, out=out), 1)[0]
    return Ceilings(
        copy=2 * x.nbytes / copy * 1e6,
        read=max(x.nbytes / read, 2 * x.nbytes / copy) * 1e6,
        bf16_flops=2 * 8192.0**3 / product * 1e6,
    )


def tuning_seconds(run: Run, sets: int) -> float:
    """Seconds of a run as `time_us` measures them, for a tuner; infinite where the device has too little of something.

    From a graph and over all sets, as a short kernel launched from the host shows the host's time, and the second-best
    may be the best on what stays in L2.
    """
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources

    try:
        run(0)
        torch.cuda.synchronize()
    except (OutOfResources, CompilationError):
        return float("inf")
    return time_us(run, sets)[0] / 1e6


def time_us(run: Run, sets: int) -> tuple[float, str]:
    """Median microseconds of one run over all input sets, and how it was timed: "graph" or "eager".

    The sets run one after the other in one CUDA graph, whose replays are timed with events; what cannot be captured is
    timed as launched from the host.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(sets):
            run(i)
    torch.cuda.synchronize()
    replay, how = _captured(run, sets)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times: list[float] = []
    while len(times) < _MIN_REPLAYS or sum(times) < _MIN_SECONDS * 1e3:
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[3:]) * 1e3 / sets, how


def _captured(run: Run, sets: int) -> tuple[Callable[[], object], str]:
    def all_sets() -> None:
        for i in range(sets):
            run(i)

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            all_sets()
    except RuntimeError:
        torch.cuda.synchronize()
        return all_sets, "eager"
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay, "graph"


@dataclass(frozen=True)
class Row:
    """One measured line. Times in microseconds."""

    operator: str
    shape: str
    us: float
    floor_us: float
    peer: str
    peer_us: float | None
    deviation: Deviation
    goal: str = ""
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def of_floor(self) -> float:
        """How near to the floor: 1 is the floor itself."""
        return self.floor_us / self.us


def run_bench(bench: Bench, ceilings: Ceilings, *, with_peers: bool = True) -> Row:
    """Compare, then time ours and every peer in turn, ours again last; ours is the mean of its two medians."""
    prepared = bench.prepare()
    found = prepared.compare()
    first, _ = time_us(prepared.ours, prepared.sets)
    peers: dict[str, float] = {}
    for name, run in prepared.peers.items() if with_peers else ():
        us, how = time_us(run, prepared.sets)
        peers[name if how == "graph" else f"{name} (eager)"] = us
    again, _ = time_us(prepared.ours, prepared.sets)
    best = min(peers, key=lambda name: peers[name]) if peers else ""
    return Row(
        operator=bench.operator,
        shape=bench.shape,
        us=(first + again) / 2,
        floor_us=ceilings.floor_us(prepared.floor),
        peer=best,
        peer_us=peers.get(best),
        deviation=found,
        goal=bench.goal,
        others=peers,
    )
