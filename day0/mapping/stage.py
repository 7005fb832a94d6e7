"""The stage: an inventory and a device give a plan."""

from collections.abc import Sequence
from typing import Any

from day0.artifacts.base import Provenance
from day0.artifacts.inventory import Inventory, Operator
from day0.artifacts.plan import NOTHING, FusionGroup, MemoryForecast, Plan, PlanLine, Switch
from day0.errors import Day0Error
from day0.mapping.choose import Target, choose, switch_rule
from day0.mapping.device import Device
from day0.mapping.memory import forecast
from day0.mapping.options import DTYPE_BYTES, MapOptions
from day0.mapping.tier import tier_of

# safetensors and torch spell dtypes differently; an inventory may hold either.
_SPELLINGS = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}

_SAME_FUNCTION = "within it every token is selected, so the dense path computes the same function"


def run(inventory: Inventory, device: Device, options: MapOptions, produced_by: Provenance) -> Plan:
    """Choose an implementation per operator and phase, and forecast the memory. Every choice carries its reason.

    Raises Day0Error where the device has no rate for the dtype asked for.
    """
    dtype, dtype_warnings = _dtype(inventory.weights_dtype, device, options)
    target = Target(device, dtype, options)
    lines = [line for operator in inventory.operators for line in choose(operator, target)]
    tier, tier_reason = tier_of(inventory.operators, lines, recipe=inventory.recipe)
    memory = forecast(inventory, target)
    warnings = [f"decompose does not hold: {fault}" for fault in inventory.faults]
    # Without a recipe nothing computes any operator, for the reason that the tier has.
    warnings += [*dtype_warnings, *(_fallback_warnings(lines, device) if inventory.recipe else [tier_reason])]
    if memory.fits is False:
        warnings.append(f"does not fit on {device.name}: {_too_large(memory, options, dtype)}")
    return Plan(
        produced_by=produced_by,
        model=inventory.model,
        device=_described(device),
        tier=tier,
        tier_reason=tier_reason,
        dtype=dtype,
        lines=tuple(lines),
        fusion_groups=tuple(_fusion_groups(inventory)),
        switches=tuple(_switches(inventory.operators)),
        memory=memory,
        warnings=tuple(warnings),
    )


def _dtype(checkpoint: str, device: Device, options: MapOptions) -> tuple[str, list[str]]:
    """The dtype to run in, and what to warn of."""
    peaks = [str(name) for name in device.peak_flops_per_s]
    if options.dtype is not None:
        if options.dtype not in peaks:
            raise Day0Error(
                f"{device.name} has no {options.dtype} rate in the catalogue", hint=f"choose from {', '.join(peaks)}"
            )
        return options.dtype, []
    stored = checkpoint.lower().removeprefix("torch.")
    stored = _SPELLINGS.get(stored, stored)
    if stored in peaks and stored in DTYPE_BYTES:
        return stored, []
    wide = "bfloat16" if stored not in DTYPE_BYTES and "bfloat16" in peaks else "float32"
    return wide, [f"the checkpoint is in {checkpoint}; on {device.device} it runs in {wide}"]


def _too_large(memory: MemoryForecast, options: MapOptions, dtype: str) -> str:
    """What of a model that does not fit is too large."""
    weights, budget = memory.weights_bytes, options.memory_fraction * memory.device_bytes
    if weights > budget:
        return f"weights alone are {_gigabytes(weights)} in {dtype}"
    workspace = memory.workspace_bytes or 0
    left = budget - weights - workspace
    rest = f"leave {_gigabytes(left)} for sequences" if left > 0 else f"are more than {_gigabytes(budget)} together"
    return f"weights of {_gigabytes(weights)} in {dtype} and a workspace of {_gigabytes(workspace)} {rest}"


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def _fallback_warnings(lines: Sequence[PlanLine], device: Device) -> list[str]:
    """One line for each reason why operators run without a fused kernel, naming the operators."""
    computed = [line for line in lines if line.implementation != NOTHING]
    no_gpu = device.type == "cpu" and bool(computed) and all(line.fallback for line in computed)
    by_reason: dict[str, dict[str, None]] = {}
    for line in lines:
        if line.implementation == NOTHING or (line.fallback and not no_gpu):
            by_reason.setdefault(line.reason, {})[line.operator] = None
    everything = len({line.operator for line in lines})
    return ["no GPU: every operator runs on PyTorch"] * no_gpu + [
        f"{f'all {everything} operators' if len(names) == everything else ', '.join(names)}: {reason}"
        for reason, names in by_reason.items()
    ]


def _fusion_groups(inventory: Inventory) -> list[FusionGroup]:
    """The inventory's candidates. A group has an implementation once a kernel of some kind computes it whole."""
    return [FusionGroup(operators=f.operators, implementation="", reason=f.reason) for f in inventory.fusions]


def _switches(operators: Sequence[Operator]) -> list[Switch]:
    switches = []
    for operator in operators:
        rule = switch_rule(operator)
        if rule is not None:
            switches.append(Switch(operator=operator.name, dense_while=rule, reason=_SAME_FUNCTION))
    return switches


def _described(device: Device) -> dict[str, Any]:
    """The device as the plan records it, with the memory that the forecast used."""
    return {**device.model_dump(mode="json", exclude_none=True), "usable_memory_bytes": device.usable_memory()}
