"""Does the model fit: weights, cache per token, state per sequence, workspace, and how many sequences that leaves."""

import math
from collections.abc import Sequence
from typing import Any

from day0.artifacts.inventory import Inventory, Operator
from day0.artifacts.layout import PAGE_TOKENS, Layout
from day0.artifacts.plan import MemoryForecast
from day0.kernels.interface.kind import Work
from day0.mapping.choose import Target, kind_of
from day0.mapping.options import DTYPE_BYTES

CONTEXTS = {"4K": 4096, "32K": 32768, "128K": 131072, "1M": 1048576}

# An operator's inputs and outputs, and as much again for what it makes in between: an estimate, not a bound.
_WORKSPACE_FACTOR = 2


def forecast(inventory: Inventory, target: Target) -> MemoryForecast:
    """The memory forecast of a model on a device, with its formula in numbers. Without a recipe: of its weights."""
    size = DTYPE_BYTES[target.dtype]
    weights = sum(weight_bytes(operator, size) for operator in inventory.operators)
    device = target.device.usable_memory()
    budget = int(target.options.memory_fraction * device)
    of_device = f"{target.options.memory_fraction:g} x {device} (device) - {weights} (weights, {target.dtype})"
    if any(kind_of(operator) is None for operator in inventory.operators):
        return MemoryForecast(
            device_bytes=device,
            weights_bytes=weights,
            kv_bytes_per_token=None,
            state_bytes_per_sequence=None,
            workspace_bytes=None,
            fits=False if weights > budget else None,
            longest_context=None,
            sequences_at={},
            formula=f"{of_device} = {budget - weights} bytes for caches, states and workspace, which a recipe sizes",
        )
    layout = Layout(components=_components(inventory.operators), vocab_size=0)
    per_token = layout.bytes_per_token(size)
    per_sequence = layout.bytes_per_sequence(size)
    largest, workspace = _workspace(inventory.operators, target, size)
    free = budget - weights - workspace
    trained = inventory.config.get("max_position_embeddings")
    keeps = bool(per_token or per_sequence)
    return MemoryForecast(
        device_bytes=device,
        weights_bytes=weights,
        kv_bytes_per_token=per_token,
        state_bytes_per_sequence=per_sequence,
        workspace_bytes=workspace,
        fits=sequences_that_fit(PAGE_TOKENS, free, per_token, per_sequence) >= 1 if keeps else free >= 0,
        longest_context=_longest_context(free, per_token, per_sequence, trained),
        sequences_at={
            name: sequences_that_fit(n, free, per_token, per_sequence)
            for name, n in (_contexts(trained) if keeps else {}).items()
        },
        formula=(
            f"free = {of_device} - {workspace} (workspace: {_WORKSPACE_FACTOR} x inputs and outputs of {largest}"
            f" over {target.options.prefill_tokens} tokens) = {free} bytes; "
            + (
                f"sequences = floor(free / ({per_token:g} x context in whole pages of {PAGE_TOKENS} + {per_sequence}))"
                if keeps
                else "a sequence keeps nothing"
            )
        ),
    )


def weight_bytes(operator: Operator, activation_bytes: int) -> int:
    """Bytes of an operator's weights in all its layers, as its kind declares them; of its parameters without a kind."""
    kind = kind_of(operator)
    if kind is None:
        return operator.parameters * activation_bytes
    sizes = {"activation": activation_bytes, "float32": max(4, activation_bytes), "int64": 8}
    specs = kind.weights(kind.parse(operator.attributes)).values()
    return places(operator) * sum(math.prod(spec.shape) * sizes[spec.dtype] for spec in specs)


def places(operator: Operator) -> int:
    """How often an operator stands in the model."""
    return max(1, len(operator.layers))


def sequences_that_fit(context: int, free: int, per_token: float, per_sequence: int) -> int:
    """How many sequences of `context` tokens `free` bytes hold; caches are given out in whole pages.

    A sequence must keep something: of what keeps nothing there is no number.
    """
    pages = math.ceil(context / PAGE_TOKENS)
    one = pages * PAGE_TOKENS * per_token + per_sequence
    return max(0, int(free // one))


def _longest_context(free: int, per_token: float, per_sequence: int, trained: Any) -> int | None:
    """Tokens of the longest sequence that fits alone, at most what the model was trained for; None: no bound."""
    bounds = [trained] if isinstance(trained, int) else []
    if per_token:
        bounds.append(max(0, int((free - per_sequence) // (per_token * PAGE_TOKENS))) * PAGE_TOKENS)
    elif free < per_sequence:
        bounds.append(0)
    return min(bounds, default=None)


def _contexts(trained: Any) -> dict[str, int]:
    """The context lengths to forecast: none beyond what the model was trained for, and at least that one."""
    if not isinstance(trained, int):
        return CONTEXTS
    return {name: n for name, n in CONTEXTS.items() if n <= trained} or {str(trained): trained}


def _components(operators: Sequence[Operator]) -> tuple[Any, ...]:
    return tuple(component for o in operators for component in o.state for _ in range(places(o)))


def _workspace(operators: Sequence[Operator], target: Target, size: int) -> tuple[str, int]:
    """The operator with the most input and output in a prefill step, and the workspace that follows from it."""
    name, most = "no operator", 0.0
    work = Work("prefill", target.options.prefill_tokens, 1, 0, activation_bytes=size, weight_bytes=0)
    for operator in operators:
        kind = kind_of(operator)
        if kind is not None:
            cost = kind.cost(kind.parse(operator.attributes), work)
            if cost.bytes_read + cost.bytes_written > most:
                name, most = operator.name, cost.bytes_read + cost.bytes_written
    return name, int(_WORKSPACE_FACTOR * most)
