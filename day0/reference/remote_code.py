"""A repo's own modeling code. Only for a process that is confined (day0.repo.sandbox): importing the code runs it."""

from pathlib import Path
from typing import Any

from day0.errors import Day0Error
from day0.reference.load import REGISTERED, require_transformers
from day0.repo.model_repo import CONFIG, ModelRepo


def copy_code(repo: ModelRepo, folder: Path) -> None:
    """Write the repo's config and Python files into a folder: all that building its model without weights needs."""
    for name in (CONFIG, *repo.python_files):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(repo.read_text(name), encoding="utf-8")


def register_code(repo: ModelRepo, folder: Path) -> None:
    """Import the classes that the repo's `auto_map` names and make transformers know them. Runs the repo's code.

    Raises Day0Error when auto_map does not name a config and a model class.
    """
    transformers = require_transformers()
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    model_name = repo.auto_map.get("AutoModelForCausalLM") or repo.auto_map.get("AutoModel")
    config_name = repo.auto_map.get("AutoConfig")
    if model_name is None or config_name is None:
        raise Day0Error("auto_map names no AutoConfig and AutoModelForCausalLM", hint="correct auto_map in the repo")
    config_class: Any = get_class_from_dynamic_module(config_name, str(folder))
    model_class: Any = get_class_from_dynamic_module(model_name, str(folder))
    model_class.config_class = config_class
    transformers.AutoConfig.register(repo.config["model_type"], config_class, exist_ok=True)
    transformers.AutoModelForCausalLM.register(config_class, model_class, exist_ok=True)
    REGISTERED.add(repo.config["model_type"])
