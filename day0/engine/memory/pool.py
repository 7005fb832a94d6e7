"""Ids of equal pieces of memory, counted by who holds them."""

from collections.abc import Callable

from day0.errors import Day0Error


class PoolEmpty(Day0Error):
    """Nothing is free. The scheduler evicts, preempts or queues; no request ever sees it."""


class Pool:
    """Ids 0 .. count - 1 of pages or of slots. A piece is free again when its last holder gives it back.

    The first `reserved` ids are never handed out: padded rows of a graph write there. `freed` is called with each id
    that becomes free (debug mode poisons it). Raises PoolEmpty when nothing is free, ValueError when a piece that
    nobody holds is shared or given back: such a fault would hand one piece to two owners later.
    """

    def __init__(self, name: str, count: int, *, reserved: int = 0, freed: Callable[[int], None] | None = None) -> None:
        if count <= reserved:
            raise ValueError(f"{count} {name}s, of which {reserved} are reserved, leave none")
        self.name = name
        self.count = count
        self.reserved = reserved
        self._freed = freed
        self._holders = [0] * count
        self._free = list(range(count - 1, reserved - 1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.count - self.reserved - len(self._free)

    def take(self) -> int:
        """A free piece, with one holder."""
        if not self._free:
            raise PoolEmpty(
                f"all {self.count - self.reserved} {self.name}s are in use", hint="wait, or give more memory"
            )
        piece = self._free.pop()
        self._holders[piece] = 1
        return piece

    def take_many(self, count: int) -> list[int]:
        """`count` pieces, or none of them."""
        if count > len(self._free):
            raise PoolEmpty(
                f"{count} {self.name}s are needed, {len(self._free)} are free", hint="wait, or give more memory"
            )
        return [self.take() for _ in range(count)]

    def share(self, piece: int) -> int:
        """One more holder of a piece that somebody holds."""
        self._held(piece)
        self._holders[piece] += 1
        return piece

    def give_back(self, piece: int) -> bool:
        """One holder less; whether the piece is free now."""
        self._held(piece)
        self._holders[piece] -= 1
        if self._holders[piece]:
            return False
        self._free.append(piece)
        if self._freed is not None:
            self._freed(piece)
        return True

    def holders(self, piece: int) -> int:
        return self._holders[piece]

    def check(self, held: dict[int, int]) -> None:
        """Raise ValueError unless exactly these pieces have exactly so many holders: what a leak would break."""
        counted = {piece: n for piece, n in enumerate(self._holders) if n}
        if counted != held:
            wrong = sorted(p for p in counted.keys() | held.keys() if counted.get(p, 0) != held.get(p, 0))
            shown = ", ".join(f"{p}: {counted.get(p, 0)} counted, {held.get(p, 0)} known" for p in wrong[:5])
            raise ValueError(f"holders of {len(wrong)} {self.name}s differ ({shown})")
        if sorted(self._free) != [p for p in range(self.reserved, self.count) if p not in counted]:
            raise ValueError(f"the free {self.name}s are not those that nobody holds")

    def _held(self, piece: int) -> None:
        if not 0 <= piece < self.count or not self._holders[piece]:
            raise ValueError(f"{self.name} {piece} has no holder")
