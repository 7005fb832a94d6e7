"""The folder kernels/ does not answer to `import kernels`: transformers asks for another package of that name."""

import importlib.util
import subprocess
import sys

from tests.house.source_tree import ROOT

TRANSFORMERS_SEES_KERNELS = """
import transformers
from transformers.utils import is_kernels_available
import day0.kernels.registry as registry
print(is_kernels_available(), len(registry.kind_names()) > 0)
"""


def python(code, cwd):
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_in_the_checkout_is_found_as_kernels():
    spec = importlib.util.find_spec("kernels")
    found = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or [])]
    assert not [place for place in found if place and str(place).startswith(str(ROOT))]


def test_nothing_in_the_checkout_is_importable_from_elsewhere(tmp_path):
    code = "import importlib.util as u; print([n for n in ('recipes', 'templates', 'tests') if u.find_spec(n)])"
    assert python(code, tmp_path) == "[]"


def test_transformers_works_beside_us(tmp_path):
    """Also from the checkout root, where Python puts the current folder on the path."""
    elsewhere = python(TRANSFORMERS_SEES_KERNELS, tmp_path)
    assert elsewhere.endswith(" True")
    assert python(TRANSFORMERS_SEES_KERNELS, ROOT) == elsewhere
