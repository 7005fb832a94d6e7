"""A repo of headers only: the tensors of a full-size config, named as on the hub, without a byte of weights."""

import json
import os
import shutil
import struct
import tempfile
from pathlib import Path

import torch
import transformers
from filelock import FileLock
from transformers.core_model_loading import revert_weight_conversion

from tests.builders.cache import BUILD_SECONDS, CACHE, builder_version, digest

DTYPES = {torch.bfloat16: ("BF16", 2), torch.float32: ("F32", 4), torch.int64: ("I64", 8)}


def header_repo(config_folder: Path) -> Path:
    """The repo that `write_header_repo` writes, made once per version of the builders: read it, do not write in it."""
    folder = CACHE / builder_version() / f"headers-{config_folder.name}-{digest(Path(__file__).read_bytes())[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock", timeout=BUILD_SECONDS):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                os.rename(write_header_repo(config_folder, Path(scratch) / "repo"), folder)
    return folder


def write_header_repo(config_folder: Path, out: Path) -> Path:
    """Write config.json and a model.safetensors that ends after its header: open it with headers_only=True."""
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
