"""Where a model's reference implementation comes from, found without importing torch, transformers or repo code."""

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from day0.errors import Day0Error
from day0.repo.model_repo import ModelRepo

_MAPPINGS = ("CONFIG_MAPPING_NAMES", "SPECIAL_MODEL_TYPE_TO_MODULE_NAME", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
_MAPPING_FILES = ("auto_mappings.py", "configuration_auto.py", "modeling_auto.py")


@dataclass(frozen=True)
class ReferenceSource:
    """The reference implementation of a repo's model.

    `kind`: the installed transformers, the repo's own code (which runs only when it is trusted), or none.
    `class_name`: the model class to build (remote code: `module.Class`), where it is known.
    `module_files`: (path, SHA-256) of its source files, relative to the transformers package or to the repo.
    `revision_hash`: SHA-256 over kind, version or commit, and those files; "" for none.
    `reason`: how that was found, in words.
    """

    kind: Literal["transformers", "remote_code", "none"]
    model_type: str | None
    architecture: str | None
    class_name: str | None
    module_files: tuple[tuple[str, str], ...]
    revision_hash: str
    reason: str


def find_reference_source(repo: ModelRepo) -> ReferenceSource:
    """The reference of `repo`: the installed transformers where it knows the model type, else the repo's own code."""
    model_type = repo.config.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        raise Day0Error("config.json: model_type is not a string", hint="correct model_type in the repo")
    architectures = repo.config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise Day0Error("config.json: architectures is not a list of strings", hint="correct it in the repo")
    architecture = architectures[0] if architectures else None
    root = transformers_root()
    if root is not None and model_type is not None and model_type in _mapping(root, "CONFIG_MAPPING_NAMES"):
        return _in_transformers(root, model_type, architecture)
    lacking = "transformers is not installed"
    if root is not None:
        lacking = (
            "config.json names no model_type"
            if model_type is None
            else f"transformers {_version()} lacks {model_type!r}"
        )
    auto_map = repo.auto_map
    if not auto_map:
        reason = f"{lacking}, and the repo brings no code of its own (no auto_map)"
        return ReferenceSource("none", model_type, architecture, None, (), "", reason)
    class_name = auto_map.get("AutoModelForCausalLM") or auto_map.get("AutoModel")
    elsewhere = [value for value in auto_map.values() if "--" in value]
    if elsewhere or not repo.python_files:
        where = f"lies in another repo ({elsewhere[0]})" if elsewhere else "is missing from the repo"
        reason = f"{lacking}, and the code that auto_map names {where}"
        return ReferenceSource("none", model_type, architecture, class_name, (), "", reason)
    files = tuple((path, _sha256(repo.files.read_bytes(path))) for path in repo.python_files)
    return ReferenceSource(
        "remote_code",
        model_type,
        architecture,
        class_name,
        files,
        _revision_hash("remote_code", repo.revision or "", files),
        f"{lacking}; the repo brings its own code",
    )


def read_module(source: ReferenceSource, repo: ModelRepo, path: str) -> str:
    """Text of `path`, one of `source.module_files`, for reading only."""
    if path not in dict(source.module_files):
        raise Day0Error(f"{path} is no source file of the reference", hint="give one of its module_files")
    if source.kind == "remote_code":
        return repo.read_text(path)
    root = transformers_root()
    assert root is not None
    return (root / path).read_text(encoding="utf-8")


def transformers_root() -> Path | None:
    """Folder of the installed transformers package, or None. Does not import it."""
    spec = importlib.util.find_spec("transformers")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _version() -> str:
    return importlib.metadata.version("transformers")


def _in_transformers(root: Path, model_type: str, architecture: str | None) -> ReferenceSource:
    module = _mapping(root, "SPECIAL_MODEL_TYPE_TO_MODULE_NAME").get(model_type, model_type.replace("-", "_"))
    folders = [root / "models" / module, root / "models" / "deprecated" / module]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        raise Day0Error(
            f"transformers {_version()} lists {model_type!r} but has no folder models/{module}",
            hint="reinstall transformers: pip install --force-reinstall transformers",
        )
    paths = sorted([*folder.glob("configuration_*.py"), *folder.glob("modeling_*.py")])
    files = tuple((path.relative_to(root).as_posix(), _sha256(path.read_bytes())) for path in paths)
    class_name = architecture
    if architecture is None or not any(_defines(path, architecture) for path in paths):
        class_name = _mapping(root, "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES").get(model_type)
    return ReferenceSource(
        "transformers",
        model_type,
        architecture,
        class_name,
        files,
        _revision_hash("transformers", _version(), files),
        f"transformers {_version()} has {model_type!r}",
    )


def _defines(path: Path, class_name: str) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.ClassDef) and node.name == class_name for node in tree.body)


def _mapping(root: Path, name: str) -> dict[str, str]:
    return _mappings(root)[name]


@cache
def _mappings(root: Path) -> dict[str, dict[str, str]]:
    """The auto-class name mappings, read from source: importing them would import torch.

    They are written as `NAME = OrderedDict([(key, value), ...])`, `NAME.update({...})` and `OrderedDict(**{...}, ...)`.
    """
    mappings: dict[str, dict[str, str]] = {name: {} for name in _MAPPINGS}
    for file in _MAPPING_FILES:
        path = root / "models" / "auto" / file
        if not path.is_file():  # auto_mappings.py is newer than the other two
            continue
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            name, call = _named_call(statement)
            if name in mappings and call is not None:
                for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
                    mappings[name].update(_literal_pairs(argument))
    return mappings


def _named_call(statement: ast.stmt) -> tuple[str, ast.Call | None]:
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
        target = statement.targets[0]
        return (target.id if isinstance(target, ast.Name) else "", statement.value)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and function.attr == "update" and isinstance(function.value, ast.Name):
            return function.value.id, statement.value
    return "", None


def _literal_pairs(node: ast.expr) -> dict[str, str]:
    pairs: list[tuple[ast.expr | None, ast.expr]] = []
    if isinstance(node, ast.Dict):
        pairs = list(zip(node.keys, node.values, strict=True))
    elif isinstance(node, ast.List):
        pairs = [
            (item.elts[0], item.elts[1]) for item in node.elts if isinstance(item, ast.Tuple) and len(item.elts) == 2
        ]
    return {
        key.value: value.value
        for key, value in pairs
        if isinstance(key, ast.Constant)
        and isinstance(value, ast.Constant)
        and isinstance(key.value, str)
        and isinstance(value.value, str)
    }


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _revision_hash(kind: str, version: str, files: tuple[tuple[str, str], ...]) -> str:
    return _sha256(json.dumps([kind, version, files]).encode())
