"""day0 recipes: the model families that ship with day0."""

from typing import Annotated

import typer

from day0.cli.common import command
from day0.cli.output import Output

app = typer.Typer(
    help="List the recipes, show one, or print the JSON Schema of their language\n\nExample: day0 recipes show NAME",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
@command
def recipes(out: Output, context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        _list(out)


@app.command("show")
@command
def show(
    out: Output, name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="Name, or a file to check")]
) -> None:
    """Print a recipe as YAML; with --json, as JSON

    Example: day0 recipes show NAME
    """
    from day0.language.recipe import load_recipe, write_recipe

    recipe = load_recipe(name)
    out.document(recipe.model_dump(mode="json"))
    out.value(write_recipe(recipe).rstrip())


@app.command("schema")
@command
def schema(out: Output) -> None:
    """Print the JSON Schema of the recipe language

    Example: day0 recipes schema > recipe.schema.json
    """
    from day0.language.recipe import Recipe

    out.json(Recipe.model_json_schema())


def _list(out: Output) -> None:
    from day0.language.recipe import shipped_recipes

    found = shipped_recipes()
    rows = [
        {
            "recipe": name,
            "model_types": recipe.match.model_types,
            "operators": len(recipe.operators),
            "paper": recipe.paper,
        }
        for name, recipe in found.items()
    ]
    out.table(rows)
    out.document(rows)
    if out.quiet:
        out.value("\n".join(found))
