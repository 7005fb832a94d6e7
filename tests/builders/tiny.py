"""Small random models of each family, and their repos on disk."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from .families import FAMILIES
from .tokenizer import BOS, END_OF_TURN, EOS, PAD, byte_tokenizer
from .values import randomise


def build(
    family: str, seed: int = 0, layers: int | None = None, **text_config: Any
) -> tuple[PreTrainedModel, PreTrainedConfig]:
    """A small model of `family` in float32, in eval mode, and its config; the same for the same arguments.

    `text_config` replaces fields of the text model's configuration, e.g. rms_norm_eps=1e-3; not one that the
    configuration class derives others from.
    """
    made = FAMILIES[family]
    config = made.config(layers or made.layers)
    text = config.get_text_config()
    for key, value in text_config.items():
        assert hasattr(text, key), f"{type(text).__name__} has no field {key}"
        setattr(text, key, value)
    config.architectures = [made.model_class]
    torch.manual_seed(seed)
    model = getattr(transformers, made.model_class)(config).float().eval()
    randomise(model, seed, made.bounded_decay)

    generation = model.generation_config
    generation.bos_token_id, generation.eos_token_id, generation.pad_token_id = BOS, [EOS, END_OF_TURN], PAD
    generation.do_sample, generation.max_new_tokens = False, 64
    return model, model.config


def write_repo(
    out: Path, family: str, seed: int = 0, dtype: str = "float32", layers: int | None = None, **text_config: Any
) -> None:
    """Write the model as a Hugging Face repo: config, generation config, safetensors under the hub's names, tokenizer.

    `dtype` is float32 or bfloat16; parameters that the family keeps in float32 stay so.
    """
    model, _ = build(family, seed, layers, **text_config)
    if dtype != "float32":
        # transformers decides which parameters stay in float32 when it loads, not when it casts.
        with TemporaryDirectory() as whole:
            model.save_pretrained(whole)
            model = type(model).from_pretrained(whole, dtype=getattr(torch, dtype))
    model.save_pretrained(out)
    byte_tokenizer().save_pretrained(out)
