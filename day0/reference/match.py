"""Find a computed tensor among the recorded tensors of a reference, whatever its axis order there."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

# Norms of equal tensors differ by summation order only: ~ sqrt(n) * 1e-16 in float64, far less than this.
_NORM_TOLERANCE = 1e-9
_NEAREST_CANDIDATES = 8
_MAX_AXES = 6


@dataclass(frozen=True)
class Match:
    """Where a tensor was found. `axes` orders the recorded tensor's axes of extent > 1; `error` is relative L2."""

    location: str
    axes: tuple[int, ...]
    error: float


class TensorIndex:
    """Recorded tensors, looked up by content.

    Floating tensors are equal when their elements are, after some permutation of axes. Integer tensors hold choices:
    rows of indices whose order means nothing and whose negative entries are padding (see `find_choice`).
    """

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._floats: dict[int, list[tuple[float, str]]] = {}
        self._choices: dict[int, list[str]] = {}
        self._sorted = True

    def add(self, location: str, tensor: Tensor) -> None:
        """Index a recorded tensor; not one of a single element or all zero, which could match anything."""
        if tensor.numel() < 2 or tensor.dtype == torch.bool:
            return
        if not tensor.is_floating_point():
            self._tensors[location] = tensor
            self._choices.setdefault(tensor.shape[-1], []).append(location)
            return
        norm = finite_norm(tensor)
        if norm > 0.0 and math.isfinite(norm):
            self._tensors[location] = tensor
            self._floats.setdefault(tensor.numel(), []).append((norm, location))
            self._sorted = False

    def __getitem__(self, location: str) -> Tensor:
        return self._tensors[location]

    def __contains__(self, location: str) -> bool:
        return location in self._tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def find(self, tensor: Tensor, tolerance: float) -> Match | None:
        """The closest recorded tensor within a relative L2 error of `tolerance` of `tensor`, which has any shape."""
        return next(iter(self.find_all(tensor, tolerance)), None)

    def find_all(self, tensor: Tensor, tolerance: float) -> list[Match]:
        """Every recorded tensor within the tolerance, the closest first: one value often stands in several places."""
        norm = finite_norm(tensor)
        if norm == 0.0 or not math.isfinite(norm):
            return []
        entries = self._entries(tensor.numel())
        slack = norm * max(_NORM_TOLERANCE, tolerance)
        low, high = bisect_left(entries, (norm - slack, "")), bisect_right(entries, (norm + slack, "\uffff"))
        matches = (self._compare(tensor, location, within=tolerance * norm) for _, location in entries[low:high])
        return sorted((m for m in matches if m.error <= tolerance), key=lambda match: match.error)

    def nearest(self, tensor: Tensor) -> Match | None:
        """The recorded tensor closest to `tensor` among those of the most similar norm; None when none is related.

        Related means a relative error below 0.7: unrelated tensors of equal norm are sqrt(2) apart.
        """
        norm = finite_norm(tensor)
        entries = sorted(self._entries(tensor.numel()), key=lambda entry: abs(entry[0] - norm))
        matches = (self._compare(tensor, location) for _, location in entries[:_NEAREST_CANDIDATES])
        return min((m for m in matches if m.error < 0.7), key=lambda m: m.error, default=None)

    def same_size(self, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Recorded tensors of as many elements, in `tensor`'s shape and every axis order, similar norms first."""
        norm = finite_norm(tensor)
        for _, location in sorted(self._entries(tensor.numel()), key=lambda entry: abs(entry[0] - norm)):
            for axes in _orders(self._tensors[location]):
                yield location, arrange(self._tensors[location], axes).reshape(tensor.shape)

    def find_choice(self, indices: Tensor, first_position: int = 0) -> str | None:
        """A recorded integer tensor that chooses the same: [N, k] indices, negative entries being padding.

        The rows belong to one sequence's consecutive queries from `first_position` on. Each row's entries must be the
        recorded row's, as sets, whose entries that the query cannot see (negative, or beyond its position: a top-k of
        masked scores has them) are left out. A choice of nothing is never found.
        """
        if indices.dim() != 2 or indices.numel() < 2 or not bool((indices >= 0).any()):
            return None
        rows = indices
        for location in self._choices.get(rows.shape[1], ()):
            recorded = self._tensors[location]
            if recorded.numel() == rows.numel() and _same_choice(rows, recorded.reshape(rows.shape), first_position):
                return location
        return None

    def _entries(self, numel: int) -> list[tuple[float, str]]:
        if not self._sorted:
            for entries in self._floats.values():
                entries.sort()
            self._sorted = True
        return self._floats.get(numel, [])

    def _compare(self, tensor: Tensor, location: str, within: float = math.inf) -> Match:
        """The best axis order. Orders whose first row is already further off than `within` (absolute) are skipped."""
        flat = tensor.reshape(-1)
        recorded = self._tensors[location]
        best: float = math.inf
        chosen: tuple[int, ...] = ()
        for axes in _orders(recorded):
            ordered = arrange(recorded, axes)
            row = ordered[(0,) * (ordered.dim() - 1)] if ordered.dim() > 1 else ordered
            if within < math.inf and float((row - flat[: len(row)]).nan_to_num(nan=0.0).norm()) > 2 * within:
                continue
            found = error(ordered.reshape(-1), flat)
            if found < best:
                best, chosen = found, axes
        return Match(location, chosen, best)


def arrange(recorded: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The recorded tensor without its axes of extent 1, the others in the order `axes`."""
    squeezed = recorded.squeeze()
    return squeezed.permute(axes) if axes else squeezed


def error(computed: Tensor, exact: Tensor) -> float:
    """Relative L2 error |computed - exact| / |exact| in float64.

    Equal infinities count as equal, a NaN is an infinite error; zero against zero is 0, else against zero infinite.
    """
    a, b = computed.to(torch.float64), exact.to(torch.float64)
    same = (a == b) & torch.isinf(b)
    a, b = a.masked_fill(same, 0.0), b.masked_fill(same, 0.0)
    difference, scale = float(torch.linalg.vector_norm(a - b)), float(torch.linalg.vector_norm(b))
    if not math.isfinite(difference):
        return math.inf
    if scale == 0.0:
        return 0.0 if difference == 0.0 else math.inf
    return difference / scale


def finite_norm(tensor: Tensor) -> float:
    """L2 norm over the finite elements, in float64; NaN when an element is NaN."""
    values = tensor.to(torch.float64)
    return float(torch.linalg.vector_norm(values.masked_fill(torch.isinf(values), 0.0)))


def _orders(recorded: Tensor) -> Iterator[tuple[int, ...]]:
    axes = sum(extent > 1 for extent in recorded.shape)
    yield from permutations(range(axes)) if axes <= _MAX_AXES else [tuple(range(axes))]


def _same_choice(rows: Tensor, recorded: Tensor, first_position: int) -> bool:
    pairs = zip(rows.tolist(), recorded.tolist(), strict=True)
    return all(
        {i for i in row if i >= 0} == {i for i in other if 0 <= i <= position}
        for position, (row, other) in enumerate(pairs, first_position)
    )
