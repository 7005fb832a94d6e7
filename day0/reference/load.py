"""Build the reference model from its own class: with a checkpoint's weights, or without any."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from day0.errors import Day0Error
from day0.language.recipe import respelled
from day0.repo.model_repo import CONFIG, ModelRepo
from day0.repo.reference_source import find_reference_source

EAGER = dict(attn_implementation="eager", experts_implementation="eager")


def require_transformers() -> Any:
    """The transformers module, from then on without progress bars and with errors only in its log.

    Raises Day0Error when it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise Day0Error(
            "the reference needs transformers, which is not installed", hint="pip install day0-workbench[reference]"
        ) from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def resolve_config(repo: ModelRepo, *, trust_remote_code: bool = False) -> tuple[Any, dict[str, Any]]:
    """The repo's config as its reference's config class understands it, and the same as a dict.

    Raises Day0Error when no reference is known, or when it is the repo's own code and that is not trusted.
    """
    _refuse_foreign_code(repo, trust_remote_code)
    return config_from_dict(repo.config)


def config_from_dict(values: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The config object that transformers makes of a config.json, and the same as a dict.

    Values that another transformers version spells otherwise are tried in its spelling too, where the family's recipe
    knows one. Raises Day0Error.
    """
    transformers = require_transformers()
    model_type = values.get("model_type")
    try:
        config_class = transformers.CONFIG_MAPPING[model_type]
    except KeyError:
        raise Day0Error(
            f"transformers {transformers.__version__} has no model type {model_type!r}",
            hint="install a newer transformers",
        ) from None
    refusal: Exception | None = None
    for spelled in (dict(values), *respelled(dict(values))):
        try:
            config = config_class.from_dict(copy.deepcopy(spelled))
        except Exception as error:  # the config classes raise whatever their validation raises
            refusal = refusal or error
        else:
            return config, config.to_dict()
    assert refusal is not None, "no spelling was tried"
    raise Day0Error(
        f"{config_class.__name__} refuses the config: {_first_line(refusal)}", hint="correct config.json"
    ) from refusal


def reference_class(config: Any) -> Any:
    """The transformers class that the config's architecture names, or the causal language model of its type."""
    transformers = require_transformers()
    for name in config.architectures or ():
        found = getattr(transformers, name, None)
        if found is not None:
            return found
    try:
        return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise Day0Error(
            f"transformers has no language model for {type(config).__name__}",
            hint="name the class under architectures in config.json",
        ) from None


def build_reference(config: Any, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    """The reference without a checkpoint, in eval mode: on "meta" without memory, on "cpu" with its own initial values.

    Raises Day0Error when the class cannot be built from the config.
    """
    model_class = reference_class(config)
    try:
        with torch.device(device):
            model = model_class._from_config(copy.deepcopy(config), dtype=dtype, **EAGER)
    except Exception as error:  # a model's __init__ may raise anything
        raise Day0Error(
            f"{model_class.__name__} cannot be built: {_first_line(error)}", hint="check config.json against the class"
        ) from error
    return model.eval()


def load_reference(
    repo: ModelRepo,
    *,
    dtype: torch.dtype = torch.float32,
    trust_remote_code: bool = False,
    layers: int | None = None,
) -> Any:
    """The reference with the repo's weights, in eval mode, attention and experts as the modeling file writes them.

    `layers` keeps the first layers only. Weights are read from safetensors, never from pickles. Raises Day0Error: no
    reference, untrusted code of the repo, no weights, or weights that do not fit the class.
    """
    _refuse_foreign_code(repo, trust_remote_code)
    if not repo.has_weights:
        raise Day0Error(f"{repo.source} has no weights", hint="give a repo with safetensors files")
    config, _ = config_from_dict(repo.config)
    if layers is not None:
        cut_layers(config, layers)
    model_class = reference_class(config)
    try:
        model, report = model_class.from_pretrained(
            local_folder(repo), config=config, dtype=dtype, use_safetensors=True, output_loading_info=True, **EAGER
        )
    except Exception as error:  # safetensors, transformers and torch each raise their own
        raise Day0Error(
            f"{model_class.__name__} cannot load {repo.source}: {_first_line(error)}", hint="check the checkpoint"
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise Day0Error(
            f"the checkpoint lacks {len(missing)} tensors that {model_class.__name__} has: {', '.join(missing[:3])}",
            hint="complete the checkpoint",
        )
    # A dtype given to from_pretrained leaves the tensors that the class keeps in float32; a float64 model has none.
    return (model.to(dtype) if dtype in (torch.float32, torch.float64) else model).eval()


def cut_layers(config: Any, layers: int) -> None:
    """Keep the first `layers` layers in a config object: the count and every per-layer list."""
    text = config.get_text_config()
    count = text.num_hidden_layers
    if not 1 <= layers <= count:
        raise Day0Error(f"{layers} layers of a model of {count}", hint=f"choose 1 to {count}")
    text.num_hidden_layers = layers
    for key, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == count:
            setattr(text, key, value[:layers])


# Model types whose classes a confined process has imported from a repo: see day0.reference.remote_code.
REGISTERED: set[str] = set()


def _refuse_foreign_code(repo: ModelRepo, trusted: bool) -> None:
    """Only transformers' own classes run in this process; a repo's code runs in the sandbox (day0.repo.sandbox)."""
    source = find_reference_source(repo)
    if source.kind == "transformers" or source.model_type in REGISTERED:
        return
    if source.kind == "none":
        require_transformers()
        raise Day0Error(f"no reference: {source.reason}", hint="install a transformers that has the model type")
    if not trusted:
        raise Day0Error(
            f"the reference is {repo.source}'s own code ({source.class_name}), which does not run unless you trust it",
            hint="read the code, then pass --trust-remote-code",
        )
    raise Day0Error(
        f"{repo.source}'s own code runs in the sandbox only, not in this process",
        hint="use a stage that runs it there, or a transformers that has the model type",
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def local_folder(repo: ModelRepo) -> Path:
    """A folder that holds config and weights, downloaded first where the repo is on the hub."""
    repo.fetch_weights()
    if "model.safetensors.index.json" in repo.file_names:
        repo.files.local_path("model.safetensors.index.json")
    return repo.files.local_path(CONFIG).parent
