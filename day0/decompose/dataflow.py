"""How a program's operators hang together: what each reads and gives, and from which operators it has it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from day0.artifacts.inventory import Fusion
from day0.kernels.registry import get_kind
from day0.language.program import LAYERS, SKIP, Layer, ParsedBlock, Program

Sources = frozenset[str]  # names of the operators that made a value


@dataclass
class Links:
    """One operator name, over all places: its ports as the recipe's steps call them, and the operators before it."""

    inputs: dict[str, None] = field(default_factory=dict)
    outputs: dict[str, None] = field(default_factory=dict)
    after: dict[str, None] = field(default_factory=dict)


def dataflow(program: Program) -> dict[str, Links]:
    """The links of every operator, by name, in the order of execution."""
    links: dict[str, Links] = {}

    def block(parsed: ParsedBlock, arguments: Iterable[Sources], layer: Layer | None) -> list[Sources]:
        values = dict(zip(parsed.takes, arguments, strict=True))
        for step in parsed.steps:
            given = [values[a] for a in step.arguments]
            target = layer.slots.get(step.callee, step.callee) if layer is not None else step.callee
            if step.callee == LAYERS and layer is None:
                results = given
                for each in program.layers:
                    results = block(program.blocks[each.block], results, each)
            elif target == SKIP:
                results = given
            elif target in program.blocks:
                results = block(program.blocks[target], given, layer)
            else:
                link = links.setdefault(target, Links())
                link.inputs |= dict.fromkeys(step.arguments)
                link.outputs |= dict.fromkeys(step.targets)
                link.after |= {name: None for sources in given for name in sorted(sources) if name != target}
                results = [frozenset({target})] * len(step.targets)
            values.update(zip(step.targets, results, strict=True))
        return [values[g] for g in parsed.gives]

    block(program.model, [frozenset() for _ in program.model.takes], None)
    return links


def fusion_candidates(program: Program, links: dict[str, Links]) -> list[Fusion]:
    """Operators that follow each other and whose kinds say that one launch could compute both."""
    kinds = {use.name: get_kind(use.kind) for use in program.uses()}
    found: dict[tuple[str, str], Fusion] = {}
    for name, link in links.items():
        for before in link.after:
            first, second = kinds[before], kinds[name]
            reason = first.fuses_with.get(second.name) or second.fuses_with.get(first.name)
            if reason:
                found[before, name] = Fusion(operators=(before, name), reason=reason)
    return list(found.values())
