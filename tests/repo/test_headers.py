import json
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.errors import Day0Error
from day0.repo.headers import DTYPE_BITS, FIRST_READ_BYTES, MAX_HEADER_BYTES, read_file_header, read_header
from tests.repo.safetensors_files import data_bytes, encode, layout, write_header_only, write_random

A = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
B = {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}


def parse(content: bytes, *, headers_only: bool = False):
    return read_header(lambda start, end: content[start:end], len(content), "f.safetensors", headers_only=headers_only)


def test_reads_what_the_safetensors_library_writes(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {"b.weight": torch.randn(3, 5), "a": torch.zeros(7, dtype=torch.bfloat16), "scalar": torch.tensor(1.0)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    header = read_file_header(tmp_path / "x.safetensors")
    assert header.metadata == {"format": "pt"}
    assert header.tensors.keys() == tensors.keys()
    content = (tmp_path / "x.safetensors").read_bytes()
    for name, tensor in tensors.items():
        found = header.tensors[name]
        assert found.shape == tuple(tensor.shape)
        assert (found.numel, found.nbytes) == (tensor.numel(), tensor.nbytes)
        assert content[found.start : found.end] == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def test_every_dtype_of_the_format_is_sized(tmp_path: Path) -> None:
    tensors = {f"t{index}": (dtype, (3, 8)) for index, dtype in enumerate(DTYPE_BITS)}
    write_random(tmp_path / "all.safetensors", tensors)
    header = read_file_header(tmp_path / "all.safetensors")
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in header.tensors.items()} == tensors
    assert {tensor.dtype: tensor.nbytes for tensor in header.tensors.values()} == {
        dtype: 3 * bits for dtype, bits in DTYPE_BITS.items()
    }


def test_empty_tensors_and_no_tensors_are_fine() -> None:
    assert parse(encode({})).tensors == {}
    content = encode({"none": {"dtype": "F32", "shape": [0, 4], "data_offsets": [24, 24]}, "a": A}) + bytes(24)
    assert parse(content).tensors["none"].nbytes == 0


def test_header_padded_with_spaces_is_fine() -> None:
    raw = json.dumps({"a": A}).encode() + b"   "
    assert parse(struct.pack("<Q", len(raw)) + raw + bytes(24)).data_start == 8 + len(raw)


BROKEN = {
    "overlap": ({"a": A, "b": B | {"data_offsets": [16, 24]}}, 24, "tensor 'b' overlaps"),
    "same bytes twice": ({"a": A, "b": A}, 24, "overlaps"),
    "hole": ({"a": A, "b": B | {"data_offsets": [32, 40]}}, 40, "hole of 8 bytes before tensor 'b'"),
    "hole at the start": ({"b": B}, 32, "hole of 24 bytes before tensor 'b'"),
    "bytes of no tensor": ({"a": A}, 30, "6 bytes after the last tensor"),
    "out of range": ({"a": A, "b": B}, 30, "tensor 'b' ends at byte 32 of a data area of 30"),
    "end before start": ({"a": A | {"data_offsets": [24, 0]}}, 24, "tensor 'a' ends at 0, before its start 24"),
    "negative offset": ({"a": A | {"data_offsets": [-24, 0]}}, 24, "tensor 'a' has invalid data_offsets"),
    "offset of 2**63": ({"a": A | {"data_offsets": [0, 2**63]}}, 24, "tensor 'a' has invalid data_offsets"),
    "three offsets": ({"a": A | {"data_offsets": [0, 1, 24]}}, 24, "tensor 'a' has invalid data_offsets"),
    "lying length": ({"a": A | {"shape": [2, 4]}}, 24, r"tensor 'a': F32 \[2, 4\] needs 32 bytes but .* hold 24"),
    "half a byte": ({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}, 2, "needs 1.50 bytes"),
    "shape too large": ({"a": A | {"shape": [2**40, 2**40]}}, 24, "tensor 'a'.* needs"),
    "negative dimension": ({"a": A | {"shape": [-2, -3]}}, 24, "tensor 'a' has an invalid shape"),
    "boolean dimension": ({"a": A | {"shape": [True, 6]}}, 24, r"invalid shape \[bool, 6\]"),
    "rank of 65": ({"a": A | {"shape": [1] * 64 + [6]}}, 24, "tensor 'a' has an invalid shape"),
    "unknown dtype": ({"a": A | {"dtype": "F33"}}, 24, "tensor 'a' has an unknown dtype 'F33'"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 24]}}, 24, "tensor 'a' must have exactly"),
    "unknown key": ({"a": A | {"strides": [3, 1]}}, 24, "tensor 'a' must have exactly"),
    "not an object": ({"a": [1]}, 24, "tensor 'a' must have exactly"),
    "unprintable name": ({"a\x1b[31m": A}, 24, "unprintable"),
    "lone surrogate": ({"\ud800": A}, 24, "unprintable"),
    "metadata of numbers": ({"__metadata__": {"a": 1}, "a": A}, 24, "__metadata__"),
    "a list": ([1, 2], 0, "not a JSON object"),
}


@pytest.mark.parametrize(("entries", "area", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_header_is_refused(entries, area: int, message: str) -> None:
    with pytest.raises(Day0Error, match=message) as caught:
        parse(encode(entries) + bytes(area))
    assert caught.value.message.startswith("f.safetensors: ")
    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short"),
        (b"\x01\x00\x00", "too short"),
        (encode({"a": A})[:-5], "reaches beyond the file"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}", "over the format's limit"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "over the format's limit"),
        (struct.pack("<Q", 2) + b"\xff\xfe", "not valid UTF-8 JSON"),
        (struct.pack("<Q", 3) + b"{]}", "not valid UTF-8 JSON"),
        (struct.pack("<Q", 3) + b" {}", "not a JSON object"),
        (struct.pack("<Q", 40000) + b"[" * 40000, "not valid UTF-8 JSON"),
        (struct.pack("<Q", 15) + b'{"a":1,"a":{}} ', "gives the key 'a' twice"),
        (struct.pack("<Q", 5006) + b'{"a":' + b"9" * 5000 + b"}", "not valid UTF-8 JSON"),
    ],
)
def test_bytes_that_are_no_header_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(Day0Error, match=message):
        parse(content)


def test_a_duplicate_key_inside_a_tensor_is_refused() -> None:
    raw = b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    with pytest.raises(Day0Error, match="gives the key 'dtype' twice"):
        parse(struct.pack("<Q", len(raw)) + raw + bytes(4))


def test_header_only_files_need_the_flag(tmp_path: Path) -> None:
    file = tmp_path / "full.safetensors"
    write_header_only(file, {"w": ("BF16", (10**6, 10**6))})
    with pytest.raises(Day0Error, match="ends at byte 2000000000000 of a data area of 0"):
        read_file_header(file)
    assert read_file_header(file, headers_only=True).tensors["w"].numel == 10**12
    # The flag accepts an absent data area, not a truncated one, nor a wrong tiling.
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(Day0Error, match="data area of 1 bytes"):
        read_file_header(file, headers_only=True)
    with pytest.raises(Day0Error, match="overlaps"):
        parse(encode({"a": A, "b": A}), headers_only=True)
    content = encode({"a": A}) + bytes(24)
    assert parse(content, headers_only=True) == parse(content)


@pytest.mark.parametrize("name_length", [10, FIRST_READ_BYTES])
def test_reads_64_kib_first_and_the_rest_only_where_the_header_is_longer(name_length: int) -> None:
    name = "n" * name_length
    content = encode(layout({name: ("F32", (10**5,))})) + bytes(4 * 10**5)
    header_end = len(content) - 4 * 10**5
    ranges: list[tuple[int, int]] = []

    def read(start: int, end: int) -> bytes:
        ranges.append((start, end))
        return content[start:end]

    assert read_header(read, len(content), "f").tensors[name].end == len(content)
    longer = [(FIRST_READ_BYTES, header_end)] if header_end > FIRST_READ_BYTES else []
    assert ranges == [(0, FIRST_READ_BYTES), *longer]


def test_a_short_read_is_refused() -> None:
    content = encode({"a": A}) + bytes(24)
    with pytest.raises(Day0Error, match="only 20 could be read"):
        read_header(lambda start, end: content[start : min(end, 28)], len(content), "f")
    with pytest.raises(Day0Error, match="only 3 bytes could be read"):
        read_header(lambda start, end: content[:3], len(content), "f")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Day0Error, match="no.safetensors: cannot be read"):
        read_file_header(tmp_path / "no.safetensors")


def only_day0_errors(content: bytes) -> None:
    for headers_only in (False, True):
        try:
            header = parse(content, headers_only=headers_only)
        except Day0Error:
            continue
        for tensor in header.tensors.values():  # what is accepted is consistent
            assert header.data_start <= tensor.start <= tensor.end
            assert tensor.numel * DTYPE_BITS[tensor.dtype] == 8 * tensor.nbytes
            assert headers_only or tensor.end <= len(content)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_fuzz_random_bytes(content: bytes) -> None:
    only_day0_errors(content)
    only_day0_errors(struct.pack("<Q", len(content)) + content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(list(DTYPE_BITS)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "w"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(JSON, st.integers(0, 64))
def test_fuzz_arbitrary_json(value: object, area: int) -> None:
    only_day0_errors(encode(value) + bytes(area))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_fuzz_mutated_headers(seed: int, mutations: int) -> None:
    rng = random.Random(seed)
    tensors = {
        f"layers.{index}.w": (rng.choice(["F32", "BF16", "F8_E4M3", "I64"]), [rng.randrange(4) for _ in range(2)])
        for index in range(rng.randrange(1, 5))
    }
    entries = layout(tensors)
    content = bytearray(encode(entries) + bytes(data_bytes(entries)))
    only_day0_errors(bytes(content))
    assert parse(bytes(content)).tensors.keys() == tensors.keys()
    for _ in range(mutations):
        position = rng.randrange(len(content))
        action = rng.randrange(4)
        if action == 0:
            content[position] ^= 1 << rng.randrange(8)
        elif action == 1:
            del content[position:]
            content += b"{" * (8 - len(content))
        elif action == 2:
            content[position:position] = rng.choice([b"-", b"9", b'"', b",", b"]", b"{", b"1e9", b"\\ud800"])
        else:
            content[8:] = content[8:].replace(b"[", rng.choice([b"[0,", b"[[", b"[true,", b"[9999999999999999999,"]), 1)
        only_day0_errors(bytes(content))
