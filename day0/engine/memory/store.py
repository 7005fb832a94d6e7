"""One model's memory, dealt out to sequences: pages, state slots, and the prefixes that later ones may reuse."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from day0.artifacts.layout import PAGE_TOKENS, Layout
from day0.engine.memory.pool import Pool, PoolEmpty
from day0.engine.memory.prefix_index import Chain, Match, PrefixIndex
from day0.kernels.interface.memory import Memory

# Where padded rows of a graph write: never dealt out.
NULL_PAGE = 0
NULL_SLOT = 0


@dataclass(eq=False)
class Place:
    """Where one sequence's memory is. Its first `length` tokens are there; no page before that is written again."""

    slot: int
    pages: list[int] = field(default_factory=list)
    length: int = 0
    reused: int = 0  # tokens that were there when it was opened
    chain: Chain = field(default_factory=Chain)

    @property
    def room(self) -> int:
        """Tokens that its pages hold."""
        return len(self.pages) * PAGE_TOKENS


class Store:
    """Pools of `pages` pages and `slots` state slots, those for padding included, all allocated here and never again.

    All components of a sequence are opened, copied and closed together. Running sequences come first: what they need is
    taken from the prefix index, least recently used first. `poison` fills what becomes free with NaN.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        pages: int,
        slots: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        reuse: bool = True,
        poison: bool = False,
    ) -> None:
        self.layout = layout
        self.memory = Memory.allocate(layout, pages=pages, slots=slots, dtype=dtype, device=device, poison=poison)
        self.pages = Pool("page", pages, reserved=NULL_PAGE + 1, freed=self._poison_page if poison else None)
        self.slots = Pool("state slot", slots, reserved=NULL_SLOT + 1, freed=self._poison_slot if poison else None)
        self._paged = [c for c in layout.components if c.role == "token_paged"]
        self._states = [c for c in layout.components if c.role == "per_sequence"]
        self.index = PrefixIndex(self.pages, self.slots, stateful=bool(self._states)) if reuse else None
        self._open: set[Place] = set()
        self._saved: set[int] = set()

    def open(self, tokens: Sequence[int], namespace: bytes = b"") -> tuple[Place, int]:
        """A place for a sequence that begins with `tokens`, filled as far as memory knows them; and the junction of
        `Match`, where a checkpoint is worth its slot. Raises PoolEmpty, with nothing taken."""
        chain = Chain(namespace)
        match = Match(0, (), None, None, 0) if self.index is None else self.index.match(tokens, chain)
        # Held first: making room may drop the very checkpoint that was found.
        held_pages = [self.pages.share(page) for page in match.pages]
        held_slot = None if match.slot is None else self.slots.share(match.slot)
        if match.tail_page is not None:
            held_pages.append(self.pages.share(match.tail_page))
        try:
            slot = self._own_slot(held_slot)
            held_slot = slot
            if match.tail_page is not None:
                held_pages[-1] = self._own_page(match.tail_page)
        except PoolEmpty:
            for page in held_pages:
                self.pages.give_back(page)
            if held_slot is not None:
                self.slots.give_back(held_slot)
            raise
        place = Place(slot, held_pages, match.position, match.position, chain)
        self._open.add(place)
        return place, match.junction

    def grow(self, place: Place, tokens: int) -> None:
        """Pages for `tokens` tokens in all. Raises PoolEmpty, with nothing taken."""
        needed = pages_of(tokens) - len(place.pages)
        if needed <= 0:
            return
        while self.pages.free < needed:
            if self.index is None or not self.index.free_page():
                raise PoolEmpty(f"{needed} pages are needed, {self.pages.free} are free", hint="wait, or preempt")
        place.pages.extend(self.pages.take_many(needed))

    def shrink(self, place: Place, tokens: int) -> None:
        """Give back the pages past `tokens` tokens, which rejected drafts took."""
        while len(place.pages) > pages_of(max(tokens, place.length)):
            self.pages.give_back(place.pages.pop())

    def keep(self, place: Place, tokens: Sequence[int]) -> bool:
        """A checkpoint of the sequence as it stands, `tokens` being all its tokens in memory; False where it is known
        already, nothing is kept, or no slot is to be had without taking one from a running sequence."""
        if len(tokens) != place.length:
            raise ValueError(f"{len(tokens)} tokens given, {place.length} in memory")
        if self.index is None or not tokens or self.index.has(tokens, place.length, place.chain):
            return False
        slot = None
        if self._states:
            try:
                slot = self._take_slot()
            except PoolEmpty:
                return False
            self.copy_state(place.slot, slot)
        return self.index.add(tokens, place.length, place.pages, slot, place.chain)

    def close(self, place: Place) -> None:
        """Give back all that the sequence holds. Raises ValueError when it is closed already."""
        if place not in self._open:
            raise ValueError("the sequence is closed already")
        self._open.remove(place)
        for page in place.pages:
            self.pages.give_back(page)
        self.slots.give_back(place.slot)
        place.pages = []

    def copy_state(self, source: int, target: int) -> None:
        """All per-sequence components of one slot into another."""
        for component in self._states:
            pool = self.memory[component.name]
            pool[target].copy_(pool[source])

    def save_state(self, place: Place) -> int:
        """A copy of the sequence's state to go back to; ended by `restore_state` or `drop_state`. Raises PoolEmpty."""
        slot = self._take_slot()
        self.copy_state(place.slot, slot)
        self._saved.add(slot)
        return slot

    def restore_state(self, place: Place, saved: int) -> None:
        """Back to the copy, which becomes the sequence's state itself."""
        self._saved.remove(saved)
        self.slots.give_back(place.slot)
        place.slot = saved

    def drop_state(self, saved: int | None) -> None:
        """The copy is not needed after all."""
        if saved is not None:
            self._saved.remove(saved)
            self.slots.give_back(saved)

    def check(self) -> None:
        """Raise ValueError when a page or slot is leaked, held twice by mistake, or free while in use."""
        pages, slots = ({}, {}) if self.index is None else self.index.held()
        for place in self._open:
            for page in place.pages:
                pages[page] = pages.get(page, 0) + 1
            slots[place.slot] = slots.get(place.slot, 0) + 1
        for slot in self._saved:
            slots[slot] = slots.get(slot, 0) + 1
        self.pages.check(pages)
        self.slots.check(slots)

    def _own_slot(self, source: int | None) -> int:
        """A slot to write in, with the state of `source` where there is one, whose hold ends: the same slot where only
        the caller holds it by now."""
        try:
            slot = self._take_slot()
        except PoolEmpty:
            if source is None or self.slots.holders(source) > 1:
                raise
            return source
        if source is not None:
            self.copy_state(source, slot)
            self.slots.give_back(source)
        return slot

    def _own_page(self, source: int) -> int:
        """As `_own_slot`, of a page."""
        try:
            page = self._take_page()
        except PoolEmpty:
            if self.pages.holders(source) > 1:
                raise
            return source
        for component in self._paged:
            self._rows(component.name, page).copy_(self._rows(component.name, source))
        self.pages.give_back(source)
        return page

    def _take_slot(self) -> int:
        while not self.slots.free and self.index is not None and self.index.free_slot():
            pass
        return self.slots.take()

    def _take_page(self) -> int:
        if not self.pages.free and self.index is not None:
            self.index.free_page()
        return self.pages.take()

    def _rows(self, name: str, page: int) -> torch.Tensor:
        pool = self.memory[name]
        entries = pool.shape[0] // self.pages.count
        return pool[page * entries : (page + 1) * entries]

    def _poison_page(self, page: int) -> None:
        _poison(self._rows(component.name, page) for component in self._paged)

    def _poison_slot(self, slot: int) -> None:
        _poison(self.memory[component.name][slot] for component in self._states)


def pages_of(tokens: int) -> int:
    """Pages that so many tokens take."""
    return -(-tokens // PAGE_TOKENS)


def _poison(freed: Iterable[torch.Tensor]) -> None:
    for rows in freed:
        if rows.is_floating_point():
            rows.fill_(float("nan"))
