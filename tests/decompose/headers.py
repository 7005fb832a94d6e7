"""A repo of headers only: the tensors of a full-size config, named as on the hub, without a byte of weights."""

import json
import shutil
import struct
from pathlib import Path

import torch
import transformers
from transformers.core_model_loading import revert_weight_conversion

DTYPES = {torch.bfloat16: ("BF16", 2), torch.float32: ("F32", 4), torch.int64: ("I64", 8)}


def write_header_repo(config_folder: Path, out: Path) -> Path:
    """Write config.json and one model.safetensors that ends after its header, as `ModelRepo(headers_only=True)` reads."""
    config = transformers.AutoConfig.from_pretrained(config_folder)
    model_class = getattr(transformers, config.architectures[0])
    with torch.device("meta"):
        model = model_class._from_config(config, dtype=torch.bfloat16)
    tensors = revert_weight_conversion(model, model.state_dict())
    header, offset = {}, 0
    for name, tensor in sorted(tensors.items()):
        code, size = DTYPES[tensor.dtype]
        end = offset + tensor.numel() * size
        header[name] = dict(dtype=code, shape=list(tensor.shape), data_offsets=[offset, end])
        offset = end
    text = json.dumps(header).encode()
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(config_folder / "config.json", out / "config.json")
    (out / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    return out
