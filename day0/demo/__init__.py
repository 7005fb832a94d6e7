"""The bundled demo model: a small trained glm5_next checkpoint that `day0 run demo` works on, offline."""

from importlib.resources import files
from pathlib import Path


def model_path() -> Path:
    """Folder of the demo checkpoint: config, tokenizer, two safetensors shards and their index."""
    return Path(str(files(__name__) / "model"))
