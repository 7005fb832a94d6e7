"""The state matrix: a package against itself in the engine, with every pair of the features that meet there.

{eager, graph} x {whole, chunked, odd chunks} x {cold, warm} x {no drafts, drafts, now and then} x {alone, packed} x
{never preempted, preempted with its state saved, with it lost} x {short, long}; short prompts see fewer tokens than a
sparse choice takes, long ones more. Each cell's tokens are those of the plain cell: the first value of each axis. Its
state is compared with a float64 run of the same tokens, and may be off by twice the most that plain runs in four ways
of cutting these tokens are off: the shapes of products change what they round. Where nothing but steps of the same
shapes ran (eager, no drafts, alone), the state equals bit for bit that of the same steps by themselves.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from day0.artifacts.alignment import MatrixCell
from day0.engine.engine import Engine
from day0.engine.graphs import Replayer
from day0.engine.memory.store import Store, pages_of
from day0.engine.request import Request, Sampling
from day0.engine.runner import Runner
from day0.engine.scheduler import Sequence as Running
from day0.engine.state import State, state_of
from day0.kernels.interface.batch import Phase
from day0.kernels.interface.package import Package
from day0.reference.match import error

GATE = "state matrix"
AXES: dict[str, tuple[str, ...]] = {
    "steps": ("eager", "graph"),
    "prompt": ("whole", "chunked", "odd chunks"),
    "prefix": ("cold", "warm"),
    "drafts": ("none", "always", "now and then"),
    "company": ("alone", "packed"),
    "preempted": ("never", "state saved", "state lost"),
    "length": ("short", "long"),
}
# Where a sequence's steps have the shapes that they have by themselves.
BIT_EXACT = {"steps": "eager", "drafts": "none", "company": "alone"}
PLAIN = {axis: values[0] for axis, values in AXES.items()}
_CHUNKS = {"whole": (), "chunked": (64,), "odd chunks": (5, 1, 31, 2, 17, 3, 63)}
_DRAFT_TOKENS = 5
_DRAFTED_EVERY = {"always": 1, "now and then": 3}
_NEW_TOKENS = 16
_ALLOWED_RATIO = 2.0
Cell = dict[str, str]
_Step = tuple[int, Phase]  # tokens, phase


def all_cells(**fixed: str) -> list[Cell]:
    """The full product, or that part of it with these values."""
    cells = [dict(zip(AXES, values, strict=True)) for values in itertools.product(*AXES.values())]
    return [cell for cell in cells if fixed.items() <= cell.items()]


def few_cells() -> list[Cell]:
    """Any two values of different axes meet in one of these; once more among those that have to be bit-exact."""
    return [*_pairwise(all_cells()), *_pairwise(all_cells(**BIT_EXACT))]


def _pairwise(cells: list[Cell]) -> list[Cell]:
    """Each next one is that in which the most pairs meet that did not before."""
    left = {pair for cell in cells for pair in _pairs(cell)}
    order = random.Random(0).sample(cells, len(cells))
    chosen: list[Cell] = []
    while left:
        chosen.append(max(order, key=lambda cell: len(_pairs(cell) & left)))
        left -= _pairs(chosen[-1])
    return chosen


def _pairs(cell: Cell) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    return set(itertools.combinations(cell.items(), 2))


def check_matrix(
    package: Package, exact: Package, prompts: Mapping[str, Sequence[int]], cells: Sequence[Cell]
) -> Iterator[MatrixCell]:
    """Run each cell. `package` in the dtype it serves in, `exact` the same in float64; `prompts` short and long."""
    plain, truth, noise = {}, {}, {}
    for length, ids in prompts.items():
        plain[length] = _run(package, list(ids), PLAIN | {"length": length}, [])
        for other in _company(list(ids)):
            plain[length].company.append(_run(package, other, PLAIN | {"length": length}, [], 2 * _NEW_TOKENS).tokens)
        seen = [*ids, *plain[length].tokens[:-1]]
        whole: list[_Step] = [(len(seen), "prefill")]
        decoded: list[_Step] = [(1, "decode") for _ in seen]
        truth[length] = _steps(exact, seen, whole)
        prompt_whole: list[_Step] = [(len(ids), "prefill"), *decoded[len(ids) :]]
        ways = [_steps(package, seen, way) for way in (whole, prompt_whole, _cut(len(seen), 7), decoded)]
        noise[length] = {name: max(error(way[name], value) for way in ways) for name, value in truth[length].items()}
    for cell in cells:
        length = cell["length"]
        found = _run(package, list(prompts[length]), cell, plain[length].tokens)
        yield _judged(cell, found, plain[length], truth[length], noise[length], package)


def _cut(length: int, size: int) -> list[_Step]:
    return [(min(size, length - start), "prefill") for start in range(0, length, size)]


@dataclass
class _Outcome:
    """What became of a request; `steps`: those that its memory came of."""

    tokens: list[int] = field(default_factory=list)
    finished: str | None = None
    error: str | None = None
    state: State = field(default_factory=dict)
    steps: list[_Step] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    reused: int = 0
    accepted: int = 0
    rejected: int = 0
    preemptions: int = 0
    company: list[list[int]] = field(default_factory=list)


class _Watch:
    """Keeps each request's steps as far as they are what its memory holds, and its state at its end."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ran: dict[Request, list[tuple[int, Phase]]] = {}  # ends of steps
        self._stem: list[tuple[int, Phase]] = []
        self.states: dict[Request, State] = {}

    def ran(self, sequence: Running, start: int, end: int, phase: Phase) -> None:
        before = self._ran.get(sequence.request, self._stem)
        self._ran[sequence.request] = [step for step in before if step[0] <= start] + [(end, phase)]

    def ends(self, sequence: Running) -> None:
        place = sequence.place
        self.states[sequence.request] = state_of(
            self._store.layout, self._store.memory, slot=place.slot, pages=place.pages, length=place.length
        )

    def steps(self, request: Request) -> list[_Step]:
        starts = [0, *(end for end, _ in self._ran[request])]
        return [(end - start, phase) for start, (end, phase) in zip(starts, self._ran[request], strict=False)]

    def made_the_stem(self, request: Request) -> None:
        self._stem = self._ran[request]


class _Drafts:
    """The text that is to come, each time wrong from another place on."""

    _right = (2, 0, _DRAFT_TOKENS, 1, 4, 3)

    def __init__(self, request: Request, text: list[int], vocabulary: int, *, every: int) -> None:
        self._request = request
        self._text = text
        self._vocabulary = vocabulary
        self._every = every
        self._turn = -1
        self.rejected = 0

    def propose(self, request: Request, tokens: list[int], most: int) -> list[int]:
        if request is not self._request:
            return []
        self._turn += 1
        number, rest = divmod(self._turn, self._every)
        if rest:
            return []
        done = len(tokens) - len(request.prompt)
        drafts = self._text[done : done + most]
        right = self._right[number % len(self._right)]
        return [*drafts[:right], *((t + 1) % self._vocabulary for t in drafts[right:])]

    def accepted(self, request: Request, accepted: int, proposed: int) -> None:
        self.rejected += proposed - accepted


def _run(package: Package, ids: list[int], cell: Cell, text: list[int], new_tokens: int = _NEW_TOKENS) -> _Outcome:
    """`text`: what the drafts take for what is to come."""
    layout = package.layout()
    stem = ids[: _stem(len(ids))]
    others = _company(ids) if cell["company"] == "packed" else []
    pages = 2 + 3 * pages_of(len(ids) + new_tokens) + sum(pages_of(len(o) + 2 * _NEW_TOKENS) for o in others)
    store = Store(layout, pages=pages, slots=12, dtype=_dtype(package), device=_device(package), poison=True)
    replay = Replayer(package, store.memory, sequences=8, device=_device(package))
    watch = _Watch(store)
    request = Request(tuple(ids), Sampling(max_tokens=new_tokens))
    drafter = None
    if cell["drafts"] != "none":
        drafter = _Drafts(request, text, layout.vocab_size, every=_DRAFTED_EVERY[cell["drafts"]])
    engine = Engine(
        replay if cell["steps"] == "graph" else package,
        store,
        max_running=5,
        step_tokens=max(4096, len(ids)),
        drafter=drafter,
        draft_tokens=_DRAFT_TOKENS,
        chunk_sizes=_CHUNKS[cell["prompt"]],
        observer=watch,
        device=_device(package),
    )
    if cell["prefix"] == "warm":
        first = Request(tuple(stem), Sampling(max_tokens=1))
        engine.run([first])
        watch.made_the_stem(first)
    company = [Request(tuple(o), Sampling(max_tokens=2 * _NEW_TOKENS)) for o in others]
    for waiting in [*company[:1], request, *company[1:]]:
        engine.add(waiting)
    preempt_at = {0, _NEW_TOKENS // 2} if cell["preempted"] != "never" else set()
    while not engine.idle:
        engine.step()
        store.check()
        for running in [s for s in engine.scheduler.running if s.request is request]:
            due = [n for n in preempt_at if len(request.drawn) >= n and running.place.length > running.place.reused]
            if due:
                preempt_at.remove(due[0])
                engine.scheduler.preempt(running)
                if cell["preempted"] == "state lost" and store.index is not None:
                    store.index.clear()
    return _Outcome(
        request.output,
        request.finished,
        request.error,
        watch.states.get(request, {}),
        watch.steps(request),
        [*ids, *request.output[:-1]],
        request.reused,
        engine.counts.accepted,
        0 if drafter is None else drafter.rejected,
        request.preemptions,
        [other.output for other in company],
    )


def _stem(length: int) -> int:
    """Two thirds: a prefix that ends inside a page."""
    return max(length * 2 // 3, 1)


def _company(ids: list[int]) -> list[list[int]]:
    """Prompts that run beside: one that shares the prefix and parts from it, one token, and some pages."""
    return [[*ids[: _stem(len(ids))], *reversed(ids)], ids[:1], [*ids[-30:], *ids, *ids[: 70 - len(ids) % 64]]]


def _judged(
    cell: Cell, found: _Outcome, plain: _Outcome, truth: State, noise: dict[str, float], package: Package
) -> MatrixCell:
    problems = []
    if found.tokens != plain.tokens:
        first = next((i for i, (a, b) in enumerate(zip(found.tokens, plain.tokens, strict=False)) if a != b), -1)
        problems.append(found.error or f"token {first} differs")
    if found.company not in ([], plain.company):
        problems.append("the tokens of a sequence beside it differ")
    for axis, took_part in (
        ("prefix", cell["prefix"] == "cold" or found.reused > 0),
        ("drafts", cell["drafts"] == "none" or (found.accepted > 0 and found.rejected > 0)),
        ("preempted", cell["preempted"] == "never" or found.preemptions == 2),
    ):
        if not took_part:
            problems.append(f"{axis} {cell[axis]}: it did not happen")
    worst, ratio = "", 0.0
    if not problems:
        for name, exact in truth.items():
            resolution = torch.finfo(_dtype(package)).eps
            allowed = _ALLOWED_RATIO * max(noise[name], resolution)
            share = error(found.state[name], exact) / allowed
            if not share <= ratio:
                worst, ratio = name, share
        if not ratio <= 1.0:
            problems.append(f"{worst} is off by {ratio:.2f} of what is allowed")
    bitwise = None
    if not problems and BIT_EXACT.items() <= cell.items():
        twin = _steps(package, found.ids, found.steps)
        different = [name for name, value in twin.items() if not torch.equal(value, found.state[name])]
        bitwise = not different
        if different:
            problems.append(f"{different[0]} is not that of the same steps alone, bit for bit")
    name = ", ".join(cell[axis] for axis in AXES)
    return MatrixCell(
        cell=cell,
        name=name,
        tokens_equal=found.tokens == plain.tokens,
        bit_exact=bitwise,
        worst_state=worst,
        worst_ratio=ratio,
        verdict="does not hold" if problems else "holds",
        detail="; ".join(problems),
    )


def _steps(package: Package, ids: list[int], steps: list[_Step]) -> State:
    """The state after these tokens in these steps, alone in fresh memory."""
    runner = Runner(package, sequences=1, tokens=len(ids), poison=True, device=_device(package))
    sequence = runner.open()
    for size, phase in steps:
        runner.step([sequence], [ids[sequence.length : sequence.length + size]], phase)
    return state_of(runner.layout, runner.memory, slot=sequence.slot, pages=sequence.pages, length=sequence.length)


def _dtype(package: Package) -> torch.dtype:
    return Runner(package, sequences=1, tokens=1).dtype


def _device(package: Package) -> torch.device:
    return next(package.parameters()).device
