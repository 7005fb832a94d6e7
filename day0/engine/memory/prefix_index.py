"""Which prefixes are in memory already: pages by a chain of hashes, and the states without which they are of no use."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from day0.artifacts.layout import PAGE_TOKENS
from day0.engine.memory.pool import Pool


class Chain:
    """The hashes of a sequence's full pages, each of the page and the hash before it. Computed once, page by page."""

    def __init__(self, namespace: bytes = b"") -> None:
        self._digests = [hashlib.blake2b(namespace, digest_size=16, person=b"day0 prefix").digest()]

    def of(self, tokens: Sequence[int], end: int | None = None) -> list[bytes]:
        """The namespace's hash, then one for each full page of the first `end` tokens. It is always the same sequence,
        which may have grown since."""
        pages = (len(tokens) if end is None else end) // PAGE_TOKENS
        for page in range(len(self._digests) - 1, pages):
            text = _bytes(tokens[page * PAGE_TOKENS : (page + 1) * PAGE_TOKENS])
            before = self._digests[-1]
            self._digests.append(hashlib.blake2b(before + text, digest_size=16, person=b"day0 page").digest())
        return self._digests[: pages + 1]


@dataclass(eq=False)
class _Node:
    """A full page of tokens after those of its parents."""

    digest: bytes
    parent: "_Node | None"
    page: int  # -1: a root, which has none
    depth: int  # pages up to its end
    children: int = 0
    checkpoints: dict[bytes, "Checkpoint"] = field(default_factory=dict)  # by tokens after the page


@dataclass(eq=False)
class Checkpoint:
    """A position from which a sequence can go on: all its pages and its state are there."""

    position: int
    slot: int | None  # of the state; None where the model keeps none
    tail_page: int | None  # page with the entries after the last full page
    tail: bytes
    node: _Node


@dataclass(frozen=True)
class Match:
    """How much of a prompt is in memory.

    The first `position` tokens need not be computed again: their full pages `pages` can be read in place, `tail_page`
    (where position is inside a page) and the state in `slot` have to be copied before the sequence writes. `junction`
    is the end of the pages that were seen before: where it is beyond `position`, a checkpoint there would have helped.
    """

    position: int
    pages: tuple[int, ...]
    tail_page: int | None
    slot: int | None
    junction: int


class PrefixIndex:
    """Pages and checkpoints of sequences that ran, for sequences that begin alike; the least recently used go first.

    A prefix is reused up to a checkpoint: a recurrent state cannot be cut back to where two prompts part, so pages
    without a state at or after them are given back. The index holds its pages and slots like any sequence does, and
    never changes what is in them. `stateful`: the model keeps a state per sequence; otherwise each full page is a
    checkpoint. Prefixes in different namespaces never meet.
    """

    def __init__(self, pages: Pool, slots: Pool, *, stateful: bool) -> None:
        self._pages = pages
        self._slots = slots
        self._stateful = stateful
        self._nodes: dict[bytes, _Node] = {}
        # Least recently used first. Of one path the deepest stands first, so that no parent goes before its child.
        self._recency: OrderedDict[Checkpoint, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recency)

    def match(self, tokens: Sequence[int], chain: Chain) -> Match:
        """The longest reusable prefix of `tokens` that leaves one to compute, whose logits are wanted."""
        path = self._path(chain.of(tokens))
        limit = len(tokens) - 1
        junction = min(path[-1].depth * PAGE_TOKENS, limit // PAGE_TOKENS * PAGE_TOKENS) if path else 0
        for node in reversed(path):
            start = node.depth * PAGE_TOKENS
            following = _bytes(tokens[start : start + PAGE_TOKENS])
            usable = [c for t, c in node.checkpoints.items() if c.position <= limit and following.startswith(t)]
            if usable:
                best = max(usable, key=lambda c: c.position)
                self._touch(path[: node.depth + 1], best)
                pages = tuple(n.page for n in path[1 : node.depth + 1])
                return Match(best.position, pages, best.tail_page, best.slot, junction)
        return Match(0, (), None, None, junction)

    def has(self, tokens: Sequence[int], position: int, chain: Chain) -> bool:
        """Whether a checkpoint stands there already: then its state need not be copied."""
        path = self._path(chain.of(tokens, position))
        full = position // PAGE_TOKENS
        return len(path) == full + 1 and _bytes(tokens[full * PAGE_TOKENS : position]) in path[full].checkpoints

    def add(self, tokens: Sequence[int], position: int, pages: Sequence[int], slot: int | None, chain: Chain) -> bool:
        """Keep a sequence's first `position` tokens, which are in `pages`; the index takes over `slot`, a copy of the
        state there. False: it is there already or has no page to itself, and the slot stays the caller's."""
        full = position // PAGE_TOKENS
        if position <= 0 or len(tokens) < position or len(pages) * PAGE_TOKENS < position:
            raise ValueError(f"no checkpoint at {position} of {len(tokens)} tokens in {len(pages)} pages")
        if (slot is not None) != self._stateful:
            raise ValueError("a checkpoint has a slot exactly where the model keeps a state")
        if self.has(tokens, position, chain):
            return False
        digests = chain.of(tokens, position)
        path = self._path(digests)
        if not path:
            path = [_Node(digests[0], None, -1, 0)]
            self._nodes[digests[0]] = path[0]
        for depth in range(len(path), full + 1):
            node = _Node(digests[depth], path[-1], self._pages.share(pages[depth - 1]), depth)
            path[-1].children += 1
            self._nodes[node.digest] = node
            path.append(node)
        if not self._stateful:
            for node in path[1:]:
                if b"" not in node.checkpoints:
                    self._keep(Checkpoint(node.depth * PAGE_TOKENS, None, None, b"", node))
        tail = _bytes(tokens[full * PAGE_TOKENS : position])
        if tail or self._stateful:
            page = self._pages.share(pages[full]) if tail else None
            self._keep(Checkpoint(position, slot, page, tail, path[full]))
        self._touch(path, path[full].checkpoints[tail])
        return True

    def free_slot(self) -> bool:
        """Give up the least recently used checkpoint; False when there is none."""
        if not self._recency:
            return False
        self._drop(next(iter(self._recency)))
        return True

    def free_page(self) -> bool:
        """Give up checkpoints until a page is free that was not; False when none is to be had."""
        before = self._pages.free
        while self._pages.free == before:
            if not self.free_slot():
                return False
        return True

    def clear(self) -> None:
        while self.free_slot():
            pass

    def held(self) -> tuple[dict[int, int], dict[int, int]]:
        """Pages and slots that the index holds, and how often: what `Pool.check` counts."""
        pages: dict[int, int] = {}
        slots: dict[int, int] = {}
        for page in (n.page for n in self._nodes.values() if n.parent is not None):
            pages[page] = pages.get(page, 0) + 1
        for checkpoint in self._recency:
            if checkpoint.tail_page is not None:
                pages[checkpoint.tail_page] = pages.get(checkpoint.tail_page, 0) + 1
            if checkpoint.slot is not None:
                slots[checkpoint.slot] = slots.get(checkpoint.slot, 0) + 1
        return pages, slots

    def _path(self, digests: list[bytes]) -> list[_Node]:
        """The root and the nodes of the full pages that are known, in order; nothing without a root."""
        path: list[_Node] = []
        for digest in digests:
            node = self._nodes.get(digest)
            if node is None:
                break
            path.append(node)
        return path

    def _keep(self, checkpoint: Checkpoint) -> None:
        checkpoint.node.checkpoints[checkpoint.tail] = checkpoint
        self._recency[checkpoint] = None

    def _touch(self, path: list[_Node], used: Checkpoint) -> None:
        self._recency.move_to_end(used)
        for node in reversed(path):
            on_grid = node.checkpoints.get(b"")
            if on_grid is not None:
                self._recency.move_to_end(on_grid)

    def _drop(self, checkpoint: Checkpoint) -> None:
        del self._recency[checkpoint]
        node: _Node | None = checkpoint.node
        assert node is not None
        del node.checkpoints[checkpoint.tail]
        if checkpoint.slot is not None:
            self._slots.give_back(checkpoint.slot)
        if checkpoint.tail_page is not None:
            self._pages.give_back(checkpoint.tail_page)
        while node is not None and not node.children and not node.checkpoints:
            del self._nodes[node.digest]
            if node.parent is not None:
                self._pages.give_back(node.page)
                node.parent.children -= 1
            node = node.parent


def grid(position: int, *, dense: int = 16) -> bool:
    """Whether a long prompt keeps a checkpoint there: at every page up to `dense` pages, then half as often each time
    the position doubles, so that their number grows with the logarithm of the length."""
    stride = PAGE_TOKENS
    while position > dense * stride:
        stride *= 2
    return position > 0 and position % stride == 0


def _bytes(tokens: Sequence[int]) -> bytes:
    return array("q", tokens).tobytes()
