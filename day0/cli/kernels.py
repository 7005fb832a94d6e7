"""day0 kernels: the kinds of operators and what their implementations accept."""

import difflib
from typing import Annotated, Any

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
    """Show one kind: attributes, methods, implementations and the clauses of their contracts

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
    out.line(f"{kind}: {declared.summary}")
    out.table(attributes, title="attributes")
    out.table(methods, title="methods")
    out.table(clauses, title="contracts")
    out.document(
        {
            "kind": kind,
            "summary": declared.summary,
            "attributes": attributes,
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


def _attributes(kind: Any) -> list[dict[str, Any]]:
    tried = kind.attributes.alternatives()
    return [
        {
            "attribute": name,
            "type": _type_name(info.annotation),
            "default": "required" if info.is_required() else repr(info.default),
            "decompose_tries": [repr(value) for value in tried.get(name, ())],
        }
        for name, info in kind.attributes.model_fields.items()
    ]


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
