"""What the server is doing, for a person: a live table on a terminal, a line in the log from time to time elsewhere."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from day0.serve.service import Service

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_log = logging.getLogger(__name__)

# Of the live table: over how long it takes rates, in seconds, and how often it is drawn.
_WINDOW_S = 5.0
_DRAWN_PER_S = 2
_BAR = 12  # characters


@dataclass(frozen=True)
class Look:
    """Rates and shares are of the time since the look before; None where nothing happened that they could be of."""

    tokens_per_s: float
    running: int
    queued: int
    pages: float  # share of token pages held, by sequences or for reuse
    slots: float  # the same of state slots
    accepted: float | None  # share of drafts
    from_memory: float | None  # share of prompt tokens, of the continuations that ended
    not_ready: str


@dataclass(frozen=True)
class _Counts:
    at: float
    steps: int
    generated: int
    drafted: int
    accepted: int
    prompt: int
    reused: int


class Status:
    """Looks at a service from any thread: it reads whole numbers only. Rates reach back `window_s` seconds."""

    def __init__(self, service: Service, *, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._window_s = window_s
        self._clock = clock
        self._seen = deque([self._counts()])

    def look(self) -> Look:
        now = self._counts()
        self._seen.append(now)
        # The oldest one kept is the last that is at least a window old.
        while len(self._seen) > 2 and now.at - self._seen[1].at >= self._window_s:
            self._seen.popleft()
        then = self._seen[0]
        engine = self._service.served.engine
        store = engine.store
        return Look(
            tokens_per_s=(now.generated - then.generated) / max(now.at - then.at, 1e-9),
            running=len(engine.scheduler.running),
            queued=engine.scheduler.waiting,
            pages=_share(store.pages.used, store.pages.count - store.pages.reserved) or 0.0,
            slots=_share(store.slots.used, store.slots.count - store.slots.reserved) or 0.0,
            accepted=_share(now.accepted - then.accepted, now.drafted - then.drafted),
            from_memory=_share(now.reused - then.reused, now.prompt - then.prompt),
            not_ready=self._service.not_ready,
        )

    @property
    def steps(self) -> int:
        """Of the engine, since it was made: the same number, and nothing has happened."""
        return self._service.served.engine.counts.steps

    def _counts(self) -> _Counts:
        counts = self._service.served.engine.counts
        return _Counts(
            self._clock(),
            counts.steps,
            counts.generated_tokens,
            counts.drafted,
            counts.accepted,
            counts.prompt_tokens,
            counts.reused_tokens,
        )


@contextmanager
def live_table(service: Service, console: "Console") -> Iterator[None]:
    """Draw the table at the bottom of a terminal. What is written to sys.stderr meanwhile stands above it."""
    from rich.live import Live

    status = Status(service, window_s=_WINDOW_S)
    with Live(
        console=console,
        get_renderable=lambda: table(status.look()),
        refresh_per_second=_DRAWN_PER_S,
        transient=True,
        redirect_stdout=False,
    ):
        yield


@contextmanager
def log_lines(service: Service, every_s: float) -> Iterator[None]:
    """Log a look every so many seconds in which the engine did anything."""
    status = Status(service, window_s=every_s)
    over = threading.Event()

    def run() -> None:
        before = status.steps
        while not over.wait(every_s):
            look, steps = status.look(), status.steps
            if steps != before:
                _log.info("status", extra={"fields": _rounded(look)})
            before = steps

    thread = threading.Thread(target=run, name="day0-status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def table(look: Look) -> "Table":
    """One row of what is counted and bars of what is full."""
    from rich import box
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def bar(share: float) -> Table:
        both = Table.grid(padding=(0, 1))
        both.add_row(ProgressBar(total=1.0, completed=share, width=_BAR), Text(f"{share:.0%}"))
        return both

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("tokens/s", "running", "queued", "token pages", "state slots", "accepted", "from memory"):
        made.add_column(name, justify="left" if name in ("token pages", "state slots") else "right")
    made.add_row(
        f"{look.tokens_per_s:.1f}",
        str(look.running),
        str(look.queued),
        bar(look.pages),
        bar(look.slots),
        _percent(look.accepted),
        _percent(look.from_memory),
    )
    if look.not_ready:
        made.caption = Text(f"not ready: {look.not_ready}", style="red")
    return made


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _rounded(look: Look) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(look).items()}
