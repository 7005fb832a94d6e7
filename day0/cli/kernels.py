"""day0 kernels: the kinds of operators and what their implementations accept."""

import difflib
import inspect
import json
import typing
from typing import Annotated, Any, Literal

import typer

from day0.cli.common import command
from day0.cli.kernel_runs import bench, test
from day0.cli.output import Output

app = typer.Typer(
    help="List the kinds of operators, or show one with its attributes and contracts\n\n"
    "Example: day0 kernels show norm",
    invoke_without_command=True,
    rich_markup_mode=None,
)
app.command("test")(test)
app.command("bench")(bench)


@app.callback()
@command
def kernels(out: Output, context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        _list(out)


@app.command("list")
@command
def list_kinds(out: Output) -> None:
    """List the kinds of operators and their implementations

    Example: day0 kernels list
    """
    _list(out)


@app.command("show")
@command
def show(out: Output, kind: Annotated[str, typer.Argument(metavar="KIND", help="Name of a kind")]) -> None:
    """Show one kind: attributes, weights, state, methods, and the clauses of its implementations' contracts

    Example: day0 kernels show norm
    """
    from day0.errors import Day0Error
    from day0.kernels.registry import get_kind, kind_names

    if kind not in kind_names():
        near = difflib.get_close_matches(kind, kind_names(), n=1)
        suggestion = f"did you mean {near[0]}? " if near else ""
        raise Day0Error(f"no kind {kind!r}", hint=f"{suggestion}known: {', '.join(kind_names())}")
    declared = get_kind(kind)
    attributes = _attributes(declared)
    clauses = [
        {
            "implementation": implementation.name,
            "clause": clause.id,
            "subject": clause.subject,
            "fact": clause.fact,
            "allowed": str(clause.allowed),
            "reason": clause.reason,
        }
        for implementation in declared.implementations
        for clause in implementation.contract.clauses
    ]
    methods = [
        {
            "method": name or "(call)",
            "inputs": [*method.inputs, *(f"{optional}?" for optional in method.optional_inputs)],
            "outputs": "by attributes" if callable(method.outputs) else method.outputs,
        }
        for name, method in declared.methods.items()
    ]
    weights = [
        {"weight": name, "shape": w.shape, "where": w.when, "dtype": w.dtype, "meaning": w.meaning}
        for name, w in declared.weights_shown.items()
    ]
    state = [
        {"state": name, "shape": c.shape, "kept": c.role, "where": c.when, "dtype": c.dtype, "meaning": c.meaning}
        for name, c in declared.state_shown.items()
    ]
    about = about_attributes(declared.attributes)
    out.line(f"{kind}: {declared.summary}\n\n{about}\n")
    out.table([_attribute_row(a) for a in attributes], title="attributes")
    out.table(weights, title="weights, their shapes and where there is one")
    out.table(state, title="state of one layer, and where there is one")
    out.table(methods, title="methods")
    out.table(clauses, title="contracts")
    out.document(
        {
            "kind": kind,
            "summary": declared.summary,
            "about": about,
            "attributes": attributes,
            "weights": weights,
            "state": state,
            "methods": methods,
            "implementations": [implementation.name for implementation in declared.implementations],
            "clauses": clauses,
            "fuses_with": dict(declared.fuses_with),
        }
    )


def _list(out: Output) -> None:
    from day0.kernels.registry import get_kind, kind_names

    rows = [
        {
            "kind": name,
            "summary": get_kind(name).summary,
            "attributes": len(get_kind(name).attributes.model_fields),
            "implementations": [implementation.name for implementation in get_kind(name).implementations],
        }
        for name in kind_names()
    ]
    out.table(rows)
    out.document(rows)
    if out.quiet:
        out.value("\n".join(kind_names()))


def about_attributes(attributes: Any) -> str:
    """What the classes of a kind's attributes say of themselves, the most general first."""
    from day0.kernels.interface.attributes import Attributes

    own = [c for c in attributes.__mro__ if issubclass(c, Attributes) and c is not Attributes]
    return "\n\n".join(inspect.cleandoc(c.__doc__) for c in reversed(own) if c.__doc__)


def _attributes(kind: Any) -> list[dict[str, Any]]:
    tried = kind.attributes.alternatives()
    return [
        {
            "attribute": name,
            "type": _type_words(info.annotation),
            "required": info.is_required(),
            "default": None if info.is_required() else info.default,
            "decompose_tries": list(tried.get(name, ())),
            "meaning": info.description or "",
        }
        for name, info in kind.attributes.model_fields.items()
    ]


def _attribute_row(attribute: dict[str, Any]) -> dict[str, Any]:
    """The attribute in the view, its values as a recipe writes them."""
    return {
        "attribute": attribute["attribute"],
        "type": attribute["type"],
        "default": "required" if attribute["required"] else json.dumps(attribute["default"]),
        "decompose_tries": [json.dumps(value) for value in attribute["decompose_tries"]],
        "meaning": attribute["meaning"] or "see above",
    }


_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def _type_words(annotation: Any) -> str:
    """A type in JSON's words, a choice by its values. Raises KeyError on a type that no recipe can write."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is Literal:
        return " | ".join(json.dumps(value) for value in arguments)
    if typing.get_origin(annotation) is tuple:
        return f"list of {_type_words(arguments[0])}s"
    if arguments:
        return " | ".join(_type_words(argument) for argument in arguments)
    return _TYPES[annotation]
