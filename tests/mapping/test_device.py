import pytest

from day0.errors import Day0Error
from day0.mapping.device import Device, load_device, read_device, shipped_devices

VALID = """
device: toy
name: a toy
type: cuda
capability: 9.0
triton: true
memory_bytes: {value: 1.0e+9, source: https://example.org/toy}
bandwidth_bytes_per_s: {value: 1.0e+12, source: https://example.org/toy}
peak_flops_per_s:
  float32: {value: 1.0e+12, source: https://example.org/toy}
"""


def test_the_shipped_devices_are_named_like_their_files_and_cite_their_sources():
    devices = shipped_devices()
    assert {"h200", "h100", "a100", "b200", "cpu"} <= set(devices)
    for device in devices.values():
        figures = [device.bandwidth_bytes_per_s, *device.peak_flops_per_s.values()]
        figures += [device.memory_bytes] if device.memory_bytes else []
        assert all("://" in f.source or f.source.startswith(("arithmetic", "measured")) for f in figures)


def test_dense_rates_fall_with_width():
    """A rate with sparsity, or in the wrong unit, stands out: halving a dtype doubles the tensor-core rate at most."""
    for device in shipped_devices().values():
        peaks = {name: figure.value for name, figure in device.peak_flops_per_s.items()}
        if "float8" in peaks:
            assert peaks["float8"] == pytest.approx(2 * peaks["bfloat16"], rel=0.02)
        if "bfloat16" in peaks:
            assert peaks["float32"] < peaks["bfloat16"] == peaks["float16"]
            assert 1e10 < device.bandwidth_bytes_per_s.value < peaks["bfloat16"]


def test_measured_figures_stay_below_the_datasheet():
    h200 = load_device("h200")
    assert h200.measured.copy_bytes_per_s.value == 4.27e12 < h200.bandwidth_bytes_per_s.value
    assert h200.measured.bfloat16_matmul_flops_per_s.value == 790e12 < h200.peak_flops_per_s["bfloat16"].value
    assert (h200.measured.launch_eager_us.value, h200.measured.launch_graph_us.value) == (10.5, 1.2)


def test_the_cpu_has_the_memory_of_this_machine():
    import psutil

    assert load_device("cpu").usable_memory() == psutil.virtual_memory().total


def test_an_unknown_device_gets_the_names_and_the_nearest():
    with pytest.raises(Day0Error) as caught:
        load_device("h20")
    assert "did you mean h200?" in caught.value.hint and "a100, b200, cpu" in caught.value.hint


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(VALID)
    assert load_device(str(path)).usable_memory() == 10**9
    with pytest.raises(Day0Error, match="cannot read device"):
        load_device(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("triton: true", "triton: true\nl2_bytes: 5"), "l2_bytes"),
        (("value: 1.0e+9", "value: -1"), "memory_bytes.value"),
        (("value: 1.0e+9", "value: .inf"), "memory_bytes.value"),
        ((", source: https://example.org/toy}\nbandwidth", "}\nbandwidth"), "memory_bytes.source"),
        (("  float32", "  float64"), "float32 rate"),
        (("  float32", "  fp32"), "fp32"),
        (("type: cuda", "type: [cuda"), "not YAML"),
        ((VALID, "just words"), "toy.yaml: the file"),
    ],
)
def test_a_broken_device_file_names_what_is_wrong(change, message):
    with pytest.raises(Day0Error, match=message.replace(".", r"\.")):
        read_device(VALID.replace(*change), name="toy.yaml")


def test_the_schema_refuses_what_reading_refuses():
    import jsonschema
    import yaml

    schema = Device.model_json_schema()
    jsonschema.validate(yaml.safe_load(VALID), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(VALID.replace("triton: true", "triton: true\nl2_bytes: 5")), schema)
