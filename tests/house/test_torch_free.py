"""What answers from declarations alone does so without torch, whose import takes seconds."""

import subprocess
import sys

import pytest

ALL_KINDS = "from day0.kernels.registry import get_kind, kind_names; [get_kind(k) for k in kind_names()]"


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("import day0.cli.app", id="help"),
        pytest.param(ALL_KINDS, id="kinds"),
        pytest.param(f"import day0.mapping.stage; {ALL_KINDS}", id="map"),
        pytest.param("import day0.language.program; import day0.repo", id="recipes"),
    ],
)
def test_torch_is_not_imported(program):
    check = "import sys; found = {'torch', 'transformers', 'triton'} & set(sys.modules); assert not found, found"
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{program}; {check}"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
