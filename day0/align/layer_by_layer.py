"""Build one layer of a reference or of a package at a time, so that models of any size can be compared here.

A reference is built as a model of one layer: its config with every per-layer list cut to that layer, its weights the
checkpoint's tensors of that layer under the name of layer 0, loaded the way transformers loads a whole checkpoint.
"""

import copy
import fnmatch
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from day0.align.training_side import Reference, as_reference
from day0.engine.package import load_package
from day0.errors import Day0Error
from day0.kernels.interface.module import OperatorModule
from day0.kernels.interface.package import Package, read_weight, weight_dtype
from day0.reference.load import EAGER, config_from_dict, reference_class
from day0.reference.trace import text_model_path
from day0.repo.model_repo import ModelRepo

_LAYER = re.compile(r"(^|\.)(layers|blocks)\.(\d+)\.")


def reference_layer(
    repo: ModelRepo,
    layer: int,
    *,
    dtype: torch.dtype,
    outer: bool,
    left_out: Collection[str] = (),
    layer_numbers: Mapping[str, int] = MappingProxyType({}),
) -> Reference:
    """The reference with one layer. `outer`: with its embedding, final norm and head as well, which else hold zeros.
    `left_out`: tensors outside the layers that the package does without; a layer gets all of its own.
    `layer_numbers`: keys of its config that list layers by number, with the number of the first layer.

    Raises Day0Error for a layer that cannot stand alone: one whose weights the class does not find by themselves.
    """
    config, _ = config_from_dict(repo.config)
    config = copy.deepcopy(config)
    text = config.get_text_config()
    _keep_layer(text, layer, layer_numbers)
    state = {}
    for name, header in repo.tensors.items():
        found = _LAYER.search(name)
        if found is None:
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in left_out):
                continue
            # Nothing reads an inner layer's embedding and head, but its token ids must be of the vocabulary.
            zero = torch.zeros((), dtype=dtype)
            state[name] = repo.read_tensor(name) if outer else zero.expand(tuple(header.shape))
        elif int(found[3]) == layer:
            state[_LAYER.sub(r"\g<1>\g<2>.0.", name, count=1)] = repo.read_tensor(name)
    model_class = reference_class(config)
    try:
        model, report = model_class.from_pretrained(
            None, config=config, state_dict=state, dtype=dtype, output_loading_info=True, **EAGER
        )
    except Exception as error:  # a model class may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Day0Error(
            f"layer {layer} of {model_class.__name__} cannot be built alone: {reason}", hint=_HINT
        ) from error
    own = re.compile(re.escape(text_model_path(model)) + r"\.?(layers|blocks)\.")
    lacking = sorted(name for name in report["missing_keys"] if own.match(name))
    if lacking:
        raise Day0Error(f"layer {layer} cannot be built alone: it lacks {', '.join(lacking[:3])}", hint=_HINT)
    model = model.to(dtype) if dtype in (torch.float32, torch.float64) else model
    return as_reference(model.eval(), dtype)


_HINT = "compare the whole model: run day0 align without --stream"


def hollow_package(folder: Path) -> Package:
    """A package whose weights take no memory yet."""
    with torch.device("meta"):
        return load_package(folder, fill=False)


def fill_operators(package: Package, repo: ModelRepo, dtype: torch.dtype, *, layer: int | None) -> list[OperatorModule]:
    """Fill the operators of one layer (None: those outside the layers) from the checkpoint; returns them."""
    mapped = package.weight_map()
    kept = set(mapped["float32"])
    prefix = f"layers.{layer}." if layer is not None else "layers."
    chosen = [o for o in package.operators() if o.name.startswith(prefix) == (layer is not None)]
    for operator in chosen:
        for weight, spec in operator.weight_specs.items():
            path = f"{operator.name}.{weight}"
            tensor = read_weight(path, spec, mapped["map"][path], repo.read_tensor)
            _assign(operator, weight, tensor.to(weight_dtype(spec, path in kept, dtype)))
    return chosen


def empty_operators(operators: list[OperatorModule]) -> None:
    """Give the memory of the operators' weights back."""
    for operator in operators:
        for weight, spec in operator.weight_specs.items():
            _assign(operator, weight, torch.empty(spec.shape, device="meta"))


def _assign(operator: OperatorModule, weight: str, tensor: Tensor) -> None:
    setattr(operator, weight, nn.Parameter(tensor, requires_grad=False))


def _keep_layer(text: Any, layer: int, layer_numbers: Mapping[str, int]) -> None:
    """Cut a text config to one layer: the count, and every list with one entry per layer.

    In a list of layers by number the layer keeps its place, with the number of the first one; the others get a number
    that no layer has now.
    """
    count = text.num_hidden_layers
    text.num_hidden_layers = 1
    for key, value in list(vars(text).items()):
        if not isinstance(value, list):
            continue
        if key in layer_numbers:
            first = layer_numbers[key]
            setattr(text, key, [first if number == first + layer else first + count for number in value])
        elif len(value) == count:
            setattr(text, key, value[layer : layer + 1])
