"""The pools a model's state lives in, made from its Layout."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from day0.artifacts.layout import Component, Layout
from day0.kernels.interface.batch import PAGE_TOKENS


class Memory(Mapping[str, Tensor]):
    """Pools by component name ("layers.3.attention.latent").

    A token-paged component is [pages * PAGE_TOKENS / tokens_per_entry, *shape] (flat rows; see Batch.token_slots), a
    per-sequence one [slots, *shape]. `poison` fills floating pools with NaN so that reading what nobody wrote shows.
    """

    def __init__(self, pools: dict[str, Tensor]) -> None:
        self._pools = pools

    @classmethod
    def allocate(
        cls,
        layout: Layout,
        *,
        pages: int,
        slots: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        poison: bool = False,
    ) -> "Memory":
        pools: dict[str, Tensor] = {}
        for component in layout.components:
            rows = slots if component.role == "per_sequence" else pages * PAGE_TOKENS // component.tokens_per_entry
            kind = component_dtype(component, dtype)
            pool = torch.zeros((rows, *component.shape), dtype=kind, device=device)
            if poison and kind.is_floating_point:
                pool.fill_(float("nan"))
            pools[component.name] = pool
        return cls(pools)

    def __getitem__(self, name: str) -> Tensor:
        return self._pools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pools)

    def __len__(self) -> int:
        return len(self._pools)


def component_dtype(component: Component, activation: torch.dtype) -> torch.dtype:
    """A component's storage dtype; float32 state becomes float64 in a float64 package, so that exactness shows."""
    if component.dtype == "int64":
        return torch.int64
    if component.dtype == "float32":
        return torch.float64 if activation == torch.float64 else torch.float32
    return activation
