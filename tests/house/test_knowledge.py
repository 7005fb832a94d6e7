"""Nothing knows a kind of operator outside kernels/, and nothing knows a model family outside recipes/."""

import ast
import re

import pytest

from tests.builders.families import FAMILIES
from tests.house.source_tree import ROOT, day0_modules, families, kernel_modules, kinds, templates, words

# Kinds whose names are also everyday words of this field: only a whole string is suspect, not a part of one.
EVERYDAY = {"attention", "embedding", "gate", "linear", "mlp", "moe", "norm", "rotary"}
# What `align` and `check` hold or do not hold is called a gate, too.
HOMONYMS = {"gate"}
# torch has a function of that name, so only strings are suspect.
TORCH_NAMES = {"index_select"}


def has_word(word: str, text: str) -> bool:
    """Whether `text` holds `word` with no letter or digit beside it."""
    return re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", text, flags=re.IGNORECASE) is not None


def kind_named(text: str, is_string: bool, known: list[str]) -> str | None:
    """The kind that a string or an identifier names, if it names one."""
    for kind in known:
        if kind in EVERYDAY:
            found = is_string and text == kind and kind not in HOMONYMS
        else:
            found = has_word(kind, text) and (is_string or kind not in TORCH_NAMES)
        if found:
            return kind
    return None


def test_day0_names_no_kind():
    known = kinds()
    wrong = [
        f"{module}:{line}: {text!r} names the kind {kind}"
        for module in day0_modules()
        for text, is_string, line in words(module.tree)
        if (kind := kind_named(text, is_string, known))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_skeleton_of_a_package_names_no_kind():
    wrong = [
        f"{template.relative_to(ROOT)} names the kind {kind}"
        for template in (ROOT / "templates").rglob("*.j2")
        for kind in kinds()
        if re.search(rf"""["']{kind}["']|kernels\.{kind}\b""", template.read_text())
        or (kind not in EVERYDAY and has_word(kind, template.read_text()))
    ]
    assert not wrong, "\n".join(wrong)


def test_code_names_no_family():
    known = {*families(), *FAMILIES}
    wrong = [
        f"{module}:{line}: {text!r} names the family {family}"
        for module in day0_modules() + kernel_modules()
        for text, _, line in words(module.tree)
        for family in known
        if has_word(family, text)
    ]
    wrong += [
        f"{template.relative_to(ROOT)} names the family {family}"
        for template in templates()
        for family in known
        if has_word(family, template.read_text())
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_branches_on_the_model_type():
    wrong = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module in day0_modules() + kernel_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Compare) and is_branch_on_model_type(node)
    ]
    assert not wrong, "\n".join(wrong)


def is_branch_on_model_type(comparison: ast.Compare) -> bool:
    """Whether something called model_type is compared with a literal that is not empty."""
    sides = [comparison.left, *comparison.comparators]
    literals = [side for side in sides if isinstance(side, ast.Constant | ast.Tuple | ast.List | ast.Set)]
    about = any(re.search(r"""model_type(['"][])])?$""", ast.unparse(s)) for s in sides if s not in literals)
    return about and any(
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value
        for literal in literals
        for node in ast.walk(literal)
    )


@pytest.mark.parametrize(
    ("text", "is_string", "kind"),
    [
        ("recurrence", True, "recurrence"),
        ("layers.3.recurrence", True, "recurrence"),
        ("run_recurrence", False, "recurrence"),
        ("recurrences", True, None),
        ("norm", True, "norm"),
        ("layer_norm", True, None),
        ("norm", False, None),
        ("index_select", False, None),
        ("index_select", True, "index_select"),
    ],
)
def test_what_counts_as_naming_a_kind(text, is_string, kind):
    assert kind_named(text, is_string, ["index_select", "norm", "recurrence"]) == kind


@pytest.mark.parametrize(
    ("code", "is_branch"),
    [
        ("config.model_type == 'some_family'", True),
        ("config['model_type'] in ('some_family', 'other')", True),
        ("'some_family' != config.get('model_type')", True),
        ("config.model_type == recipe.model_type", False),
        ("model_type in known('NAMES')", False),
        ("'model_type' in config", False),
        ("model_type != ''", False),
    ],
)
def test_what_counts_as_a_branch_on_the_model_type(code, is_branch):
    assert is_branch_on_model_type(ast.parse(code).body[0].value) == is_branch
