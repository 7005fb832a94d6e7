"""Record what a model computes, so that `day0 align --golden FILE` can compare with it elsewhere.

Stands alone (torch and safetensors) and takes any torch model whose layers are modules in a list:

    python record.py my_module:load OUT.safetensors --layers model.layers --prompt 1,5,9,2 --prompt 7,7,3 --float64

`load()` gives the model; `model(ids [1, T])` gives logits [1, T, vocab], or an object with `.logits`. Record two
prompts or more, of odd lengths. With --float64 the comparison is exact (to 1e-10); without, the model runs in the dtype
that `load` gave it, and the comparison is held to the package's own rounding error in that dtype.

The file, for each prompt p = "0", "1", ...:

    p.input_ids                 [T] int64
    p.layer.<i>.input           [1, T, ...]  the hidden states that layer i was given, and
    p.layer.<i>.output          [1, T, ...]  gave back (the first tensor, where it gives several)
    p.logits                    [T, vocab]
    p.new_ids, p.new_margins    [N]          greedy continuation; best minus second-best logit at each of its tokens

and metadata: format "day0-golden-1", model (class), dtype, layers, prompts (how many), torch (version).
"""

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn


def first_tensor(value: Any) -> Tensor | None:
    """The first floating tensor of a tensor, tuple, list or dict; of a dict, "hidden_states" where it has that."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value, key=lambda key: key != "hidden_states")]
    found = map(first_tensor, value) if isinstance(value, tuple | list) else ()
    return next((tensor for tensor in found if tensor is not None), None)


def logits_of(model: nn.Module, ids: list[int]) -> Tensor:
    out = model(torch.tensor([ids]))
    logits: Tensor = getattr(out, "logits", out)[0]
    return logits.clone()


@torch.no_grad()
def record_prompt(model: nn.Module, layers: Sequence[nn.Module], ids: list[int], new: int) -> dict[str, Tensor]:
    """Everything of one prompt, under names without the prompt's."""
    kept = {"input_ids": torch.tensor(ids)}

    def keeping(index: int) -> Any:
        def hook(_module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
            for side, tensor in (("input", first_tensor([arguments, named])), ("output", first_tensor(result))):
                assert tensor is not None, f"layer {index} has no floating {side}"
                kept[f"layer.{index}.{side}"] = tensor.clone()

        return hook

    handles = [layer.register_forward_hook(keeping(i), with_kwargs=True) for i, layer in enumerate(layers)]
    kept["logits"] = logits_of(model, ids)
    for handle in handles:
        handle.remove()
    chosen: list[int] = []
    margins: list[float] = []
    while len(chosen) < new:
        best = (logits_of(model, [*ids, *chosen])[-1]).double().topk(2)
        chosen.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
    kept["new_ids"] = torch.tensor(chosen, dtype=torch.int64)
    kept["new_margins"] = torch.tensor(margins, dtype=torch.float64)
    return kept


def record(model: nn.Module, layers: Sequence[nn.Module], prompts: list[list[int]], path: str, new: int = 16) -> None:
    """Write the file. `layers`: the layer modules in order; `prompts`: lists of token ids."""
    tensors: dict[str, Tensor] = {}
    for number, ids in enumerate(prompts):
        found = record_prompt(model, layers, ids, new)
        tensors |= {f"{number}.{name}": tensor.contiguous().cpu() for name, tensor in found.items()}
    dtype = str(tensors["0.logits"].dtype).removeprefix("torch.")
    facts = {"format": "day0-golden-1", "model": type(model).__name__, "dtype": dtype, "torch": torch.__version__}
    save_file(tensors, path, {**facts, "layers": str(len(layers)), "prompts": str(len(prompts))})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", metavar="MODULE:FUNCTION")
    parser.add_argument("out")
    parser.add_argument("--layers", required=True, help="attribute path of the list of layers")
    parser.add_argument("--prompt", action="append", required=True, help="token ids, with commas")
    parser.add_argument("--new", type=int, default=16, help="tokens of the greedy continuation")
    parser.add_argument("--float64", action="store_true", help="run in float64, where the code says float32 too")
    asked = parser.parse_args()
    module, _, function = asked.model.partition(":")
    loaded = getattr(importlib.import_module(module), function)().eval()
    if asked.float64:
        loaded = loaded.double()
        torch.float32 = torch.float = torch.float64
        torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    texts = [[int(i) for i in prompt.split(",")] for prompt in asked.prompt]
    record(loaded, list(loaded.get_submodule(asked.layers)), texts, asked.out, asked.new)
