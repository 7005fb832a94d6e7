"""Evidence: what long runs measured, in docs/evidence/*.json, with the commit, the date and a hash of its inputs.

A file has parts that are measured and grow stale on their own:

    {"command", "commit", "date", "inputs", "summary", "parts": {name: {"files", "inputs", "commit", "date", ...}}}

`files` are the paths that a part depends on, and `inputs` is their hash; at the top it is the hash of the parts'.
"""

import ast
import datetime
import hashlib
import io
import json
import os
import subprocess
import tokenize
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "evidence"


def measured(files: Iterable[str], results: Mapping[str, Any]) -> dict[str, Any]:
    """A part: results that were measured just now and depend on these files (paths from the checkout)."""
    paths = sorted(set(files))
    return {"files": paths, "inputs": digest(paths), "commit": _commit(paths), "date": _now(), **results}


def write(name: str, *, command: str, summary: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write docs/evidence/<name>.json. `command` is what a reader runs to measure again what is stale."""
    files = [file for part in parts.values() for file in part["files"]]
    record = {
        "command": command,
        "commit": _commit(files),
        "date": _now(),
        "inputs": _combined(parts),
        "summary": dict(summary),
        "parts": dict(sorted(parts.items())),
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)
    return path


def read(name: str) -> dict[str, Any] | None:
    """docs/evidence/<name>.json, or None when there is none."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def is_fresh(part: Mapping[str, Any] | None, files: Iterable[str] | None = None) -> bool:
    """Whether a part still speaks of the files as they are; with `files`, also whether it depends on just those."""
    if part is None or (files is not None and sorted(set(files)) != part["files"]):
        return False
    return all((ROOT / file).is_file() for file in part["files"]) and digest(part["files"]) == part["inputs"]


def stale_parts(record: Mapping[str, Any]) -> list[str]:
    """The parts whose inputs have changed since they were measured. Raises ValueError on an edited record."""
    if record["inputs"] != _combined(record["parts"]):
        raise ValueError("the hash of the whole is not that of the parts")
    return [name for name, part in record["parts"].items() if not is_fresh(part)]


def digest(files: Iterable[str]) -> str:
    """SHA-256 over paths and contents; of Python over what runs: no comments, docstrings or blank lines."""
    whole = hashlib.sha256()
    for file in sorted(set(files)):
        text = (ROOT / file).read_bytes()
        if file.endswith(".py"):
            text = _what_runs(text.decode()).encode()
        whole.update(f"{file}\0{len(text)}\0".encode() + text)
    return whole.hexdigest()


def _what_runs(source: str) -> str:
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            lines[first.lineno - 1 : first.end_lineno] = [""] * (first.end_lineno - first.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _combined(parts: Mapping[str, Mapping[str, Any]]) -> str:
    return hashlib.sha256("".join(f"{name} {parts[name]['inputs']}\n" for name in sorted(parts)).encode()).hexdigest()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _commit(files: Iterable[str]) -> str:
    """The commit checked out, with "+" when one of the files differs from it; "unknown" outside a git checkout."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD").strip()
        return head + ("+" if _git("status", "--porcelain", "--", *sorted(set(files))) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*args: str) -> str:
    return subprocess.run(["git", *args], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
