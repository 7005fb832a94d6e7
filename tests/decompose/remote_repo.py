"""A repo with code of its own: the synthetic Attention Residuals model, small and random."""

import importlib.util
import json
import shutil
from pathlib import Path

import torch

CODE = Path(__file__).resolve().parents[1] / "builders" / "remote" / "modeling_attention_residuals.py"


def write_remote_repo(out: Path, seed: int = 0) -> Path:
    """Write config.json with an auto_map, the code, and random weights."""
    spec = importlib.util.spec_from_file_location("remote_for_tests", CODE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(seed)
    model = module.AttentionResidualsForCausalLM(module.AttentionResidualsConfig())
    model.save_pretrained(out)
    shutil.copy(CODE, out / CODE.name)
    config = json.loads((out / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": f"{CODE.stem}.AttentionResidualsConfig",
        "AutoModelForCausalLM": f"{CODE.stem}.AttentionResidualsForCausalLM",
    }
    (out / "config.json").write_text(json.dumps(config))
    return out
