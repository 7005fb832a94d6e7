"""Which safetensors files hold the model, and the headers of all its tensors, checked against the index."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

from day0.artifacts.text import parse_json
from day0.errors import Day0Error
from day0.repo.files import RepoFiles, check_relative
from day0.repo.headers import TensorHeader

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_PICKLE_SUFFIXES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}
_PARALLEL_HEADER_READS = 8


def refuse_pickle_only(names: frozenset[str]) -> None:
    """Raise Day0Error when the checkpoint is there only as pickles, which can run code when they are loaded."""
    pickles = sorted(name for name in names if PurePosixPath(name).suffix in _PICKLE_SUFFIXES)
    if pickles and not any(name.endswith(".safetensors") for name in names):
        raise Day0Error(
            f"the checkpoint is pickle-only ({pickles[0]}), which is never loaded",
            hint="convert it to safetensors, or use a revision of the repo that has safetensors",
        )


def weight_files(files: RepoFiles, names: frozenset[str]) -> tuple[str, ...]:
    """Paths of the files that hold the model, sorted: the single file, or what the index names; () without weights."""
    if SINGLE_FILE in names:
        return (SINGLE_FILE,)
    if INDEX_FILE in names:
        return tuple(sorted(set(_read_weight_map(files).values())))
    stray = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    if stray:
        raise Day0Error(
            f"{stray[0]} is there, but neither {SINGLE_FILE} nor {INDEX_FILE}",
            hint=f"add {INDEX_FILE} to the repo, or rename a single weight file to {SINGLE_FILE}",
        )
    return ()


def read_tensor_headers(files: RepoFiles, names: frozenset[str], *, headers_only: bool) -> dict[str, TensorHeader]:
    """Headers of all tensors, sorted by name. Raises Day0Error where the index and the files disagree."""
    paths = weight_files(files, names)
    weight_map = None if paths in ((), (SINGLE_FILE,)) else _read_weight_map(files)
    missing = [path for path in paths if path not in names]
    if missing:
        raise Day0Error(
            f"{INDEX_FILE} names {missing[0]}, which is not in the repo" + _and_more(missing),
            hint="download the repo again: it is incomplete",
        )
    with ThreadPoolExecutor(_PARALLEL_HEADER_READS) as pool:
        headers = list(pool.map(lambda path: files.safetensors_header(path, headers_only=headers_only), paths))
    tensors = [tensor for header in headers for tensor in header.tensors.values()]
    if weight_map is not None:
        _compare(set(weight_map.items()), {(tensor.name, tensor.file) for tensor in tensors})
    return {tensor.name: tensor for tensor in sorted(tensors, key=lambda tensor: tensor.name)}


def _compare(indexed: set[tuple[str, str]], found: set[tuple[str, str]]) -> None:
    absent = sorted(indexed - found)
    if absent:
        name, path = absent[0]
        raise Day0Error(
            f"{INDEX_FILE} places {name!r} in {path}, which does not hold it" + _and_more(absent),
            hint="index and weight files are of different revisions: download the repo again",
        )
    unlisted = sorted(found - indexed)
    if unlisted:
        name, path = unlisted[0]
        raise Day0Error(
            f"{path} holds {name!r}, which {INDEX_FILE} does not place there" + _and_more(unlisted),
            hint="index and weight files are of different revisions: download the repo again",
        )


def _read_weight_map(files: RepoFiles) -> dict[str, str]:
    try:
        text = files.read_bytes(INDEX_FILE).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Day0Error(f"{INDEX_FILE} is not UTF-8 text", hint="download the file again") from error
    index = parse_json(text, name=INDEX_FILE, hint="download the file again")
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise Day0Error(f"{INDEX_FILE} has no weight_map", hint="download the file again")
    for name, path in weight_map.items():
        if not isinstance(path, str) or not path.endswith(".safetensors"):
            raise Day0Error(
                f"{INDEX_FILE} places {name!r} in {path!r}, not a safetensors file", hint="correct the index"
            )
        check_relative(path, INDEX_FILE)
    return weight_map


def _and_more(items: Sequence[object]) -> str:
    return f" ({len(items) - 1} more like it)" if len(items) > 1 else ""
