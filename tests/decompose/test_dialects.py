"""Layer types have other names in other transformers versions; the model is the same."""

import json
import shutil

from day0 import decompose
from day0.artifacts.base import Provenance
from day0.demo import model_path
from day0.repo import ModelRepo


def test_the_demo_in_either_dialect_gives_the_same_inventory(tmp_path):
    inventories = []
    for word in ("indexed_attention", "deepseek_sparse_attention"):
        folder = tmp_path / word
        shutil.copytree(model_path(), folder)
        config = json.loads((folder / "config.json").read_text())
        types = config["text_config"]["layer_types"]
        assert "indexed_attention" in types
        config["text_config"]["layer_types"] = [word if t == "indexed_attention" else t for t in types]
        (folder / "config.json").write_text(json.dumps(config))
        repo = ModelRepo.open(folder)
        inventories.append(decompose.run(repo, decompose.Options(), Provenance(day0_version="0", model_hash="0")))
    first, second = inventories
    assert first.holds and {o.evidence.established for o in first.operators} == {"proved"}
    assert first.operators == second.operators
    assert first.schedule == second.schedule and first.tensor_audit == second.tensor_audit
    audits = [{k.key: k.audit for k in i.config_audit} for i in inventories]
    assert audits[0] == audits[1] and "contradicted" not in audits[0].values()
