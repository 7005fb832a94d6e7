"""The full-size configurations: their parameter counts are as published, and every field has a source."""

import json
from pathlib import Path

import pytest
import torch
import transformers

DATA = Path(__file__).parent
MODELS = ["glm-5.3-flash", "qwen4-exp"]


def keys(config):
    """Every key of a nested configuration."""
    for key, value in config.items():
        yield key
        if isinstance(value, dict):
            yield from keys(value)


@pytest.mark.parametrize("model", MODELS)
def test_parameter_count(model):
    config = transformers.AutoConfig.from_pretrained(DATA / model)
    with torch.device("meta"):
        built = getattr(transformers, config.architectures[0])(config)
    sizes = {name: parameter.numel() for name, parameter in built.named_parameters()}
    assert json.loads((DATA / model / "expected.json").read_text()) == dict(
        text_parameters=sum(size for name, size in sizes.items() if ".visual." not in name),
        parameters=sum(sizes.values()),
    )


@pytest.mark.parametrize("model", MODELS)
def test_every_field_has_a_source(model):
    sources = (DATA / model / "SOURCES.md").read_text()
    config = json.loads((DATA / model / "config.json").read_text())
    text_config = config.pop("text_config")
    vision_config = config.pop("vision_config")
    unnamed = {key for key in keys(config | text_config) if f"`{key}`" not in sources}
    assert not unnamed
    assert "`vision_config`" in sources and vision_config
