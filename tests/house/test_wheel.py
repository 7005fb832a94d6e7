"""The wheel stands alone: built here, installed elsewhere, it has the command, the kinds and the data."""

import json
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest

from tests.house.source_tree import ROOT, families, kinds

INSPECT = """
import json
from importlib.resources import files
import day0
from day0.demo import model_path
from day0.kernels.registry import kind_names, module_source

def names(package, suffix):
    def walk(folder):
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from walk(entry)
            elif entry.name.endswith(suffix):
                yield entry.name
    return sorted(walk(files(package)))

print(json.dumps(dict(
    where=day0.__file__,
    kinds=[kind for kind in kind_names() if module_source(kind)],
    recipes=names("day0.recipes", ".yaml"),
    templates=names("day0.templates", ".j2"),
    demo=sorted(path.name for path in model_path().iterdir()),
    typed=(files("day0") / "py.typed").is_file(),
)))
"""


def run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.verify
def test_the_wheel_stands_alone(tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    # A copy, because setuptools builds in place and would pack what an earlier build left behind.
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "*.day0"))
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path / "dist", source, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")

    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    # Our dependencies, but not the editable day0: Python reads that hook only in site-packages itself.
    (site_packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", "--ignore-installed", wheel, cwd=tmp_path)

    found = json.loads(run(python, "-c", INSPECT, cwd=tmp_path))
    assert found["where"].startswith(str(tmp_path))
    assert found["kinds"] == kinds()
    assert {f"{family}.yaml" for family in families()} <= set(found["recipes"])
    assert set(found["templates"]) >= {path.name for path in (ROOT / "templates").rglob("*.j2")}
    assert set(found["demo"]) == {path.name for path in (ROOT / "day0" / "demo" / "model").iterdir()}
    assert found["typed"]
    assert "Usage" in run(tmp_path / "venv" / "bin" / "day0", "--help", cwd=tmp_path)
