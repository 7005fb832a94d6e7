"""Whether drafts pay: tokens a second with them over tokens a second without, as measured while requests run."""

from dataclasses import dataclass, field

# Steps with drafts between two decisions; running means weigh about as many.
WINDOW = 32
# Steps without drafts ahead of each window, so that the rate without them is known for the contexts of now.
BASELINE = 2
# Steps that a pause lasts: twice as long after each window that did not pay, up to the longest.
SHORTEST_PAUSE = 64
LONGEST_PAUSE = 4096


@dataclass
class _Rate:
    """Tokens a second, from running means of steps: of the first WINDOW steps the plain ones, then exponential."""

    steps: int = 0
    tokens: float = 0.0  # a step
    seconds: float = 0.0  # a step

    def add(self, tokens: int, seconds: float) -> None:
        self.steps += 1
        weight = 1 / min(self.steps, WINDOW)
        self.tokens += weight * (tokens - self.tokens)
        self.seconds += weight * (seconds - self.seconds)


@dataclass
class _Size:
    """What is known of steps of about one number of sequences."""

    plain: _Rate = field(default_factory=_Rate)
    drafted: _Rate = field(default_factory=_Rate)
    plain_due: int = BASELINE  # steps without drafts until the next window
    pause: int = SHORTEST_PAUSE  # how long the next one would last
    gain: float | None = None


class Speculation:
    """Pauses drafting where it loses, and tries it again later.

    A window of WINDOW steps with drafts is compared to the steps without: below a gain of 1 no drafts are made for
    SHORTEST_PAUSE steps, twice as many each time in a row, LONGEST_PAUSE at most. The gain depends on how many
    sequences share a step, so powers of two of them are judged apart. A window starts its mean anew: what kernels and
    graphs took to be made in one counts in no later one.
    """

    def __init__(self) -> None:
        self.pauses = 0
        self._sizes: dict[int, _Size] = {}

    def drafts(self, sequences: int) -> bool:
        """Whether a step of so many decoding sequences should have drafts."""
        return self._size(sequences).plain_due == 0

    def gain(self, sequences: int) -> float | None:
        """What the last window of steps of about so many sequences gave; None before the first."""
        return self._size(sequences).gain

    def decoded(self, sequences: int, seconds: float) -> None:
        """A step without drafts gave each sequence a token."""
        size = self._size(sequences)
        size.plain.add(sequences, seconds)
        size.plain_due = max(0, size.plain_due - 1)

    def verified(self, sequences: int, tokens: int, seconds: float) -> None:
        """A step with drafts for some of its sequences gave `tokens`, replays and all else that drafts cause within
        `seconds`."""
        size = self._size(sequences)
        size.drafted.add(tokens, seconds)
        if size.drafted.steps < WINDOW:
            return
        size.gain = _ratio(size.drafted, size.plain)
        size.drafted = _Rate()
        if size.gain < 1:
            self.pauses += 1
            size.plain_due = size.pause
            size.pause = min(2 * size.pause, LONGEST_PAUSE)
        else:
            size.plain_due = BASELINE
            size.pause = SHORTEST_PAUSE

    def _size(self, sequences: int) -> _Size:
        return self._sizes.setdefault((sequences - 1).bit_length(), _Size())


def _ratio(drafted: _Rate, plain: _Rate) -> float:
    """Tokens a second of one over those of the other; a clock too coarse to see either says nothing: 1."""
    if drafted.seconds <= 0 or plain.seconds <= 0:
        return 1.0
    return drafted.tokens / drafted.seconds * plain.seconds / plain.tokens
