"""`ModelRepo`: one revision of a model repo, opened lazily. Weights are read only when they are asked for by name."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from day0.artifacts.text import parse_json
from day0.errors import Day0Error
from day0.repo.files import LocalFiles, RepoFiles
from day0.repo.headers import TensorHeader
from day0.repo.weight_index import read_tensor_headers, refuse_pickle_only, weight_files

if TYPE_CHECKING:
    import torch

    from day0.repo.tokenizer import Tokenizer

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
TOKENIZER_FILES = (
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "spiece.model",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer.model",
    TOKENIZER_CONFIG,
    "vocab.json",
)
_SAMPLED_BLOCKS = 64  # of each weight file, for the hash
_SAMPLED_BYTES = 4096
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


class ModelRepo:
    """A model repo, in a folder or on the hub. Build it with `ModelRepo.open`."""

    def __init__(self, name: str, source: str, files: RepoFiles, *, headers_only: bool = False) -> None:
        self.name = name
        self.source = source
        self.files = files
        self.headers_only = headers_only

    @classmethod
    def open(
        cls,
        source: str | Path,
        *,
        revision: str | None = None,
        cache_dir: Path | None = None,
        headers_only: bool = False,
    ) -> "ModelRepo":
        """Open the folder or hub id `source`.

        A `Path`, an existing folder, or a string that starts with `.`, `/` or `~` is a folder; anything else is a hub
        id (`org/name` or `name`). `revision` (branch, tag or commit) and `cache_dir` (instead of the hub's usual cache)
        go with hub ids only. `headers_only` also accepts weight files that end after their header, as written for
        full-size configs.

        Raises Day0Error: no such folder, unknown id or revision, no access, no network, pickle-only checkpoint.
        """
        text = str(source)
        folder = Path(text).expanduser()
        if isinstance(source, Path) or text.startswith((".", "/", "~")) or (text and folder.is_dir()):
            if revision is not None or cache_dir is not None:
                raise Day0Error(
                    f"{text} is a folder, which has no revision or cache", hint="leave them out, or give a hub id"
                )
            if not folder.is_dir():
                raise Day0Error(
                    f"{text} is not a folder", hint="give the folder that holds config.json, or a hub id (org/name)"
                )
            name = Path(os.path.abspath(folder)).name  # not resolve(): a link keeps the name the user gave
            repo = cls(name, text, LocalFiles(folder), headers_only=headers_only)
        else:
            if not _HUB_ID.fullmatch(text):
                raise Day0Error(
                    f"{text!r} is neither a folder nor a hub id", hint="give a folder, or a hub id such as org/name"
                )
            from day0.repo.hub import open_hub_files

            files = open_hub_files(text, revision=revision, cache_dir=cache_dir)
            repo = cls(text.rsplit("/", 1)[-1], text, files, headers_only=headers_only)
        refuse_pickle_only(repo.file_names)
        return repo

    @property
    def location(self) -> str:
        """Where the repo can be opened from any folder: a hub id, or a folder's absolute path."""
        return self.source if self.revision is not None else os.path.abspath(Path(self.source).expanduser())

    @property
    def revision(self) -> str | None:
        """Commit of a hub repo; None for a folder."""
        return self.files.revision

    @cached_property
    def file_names(self) -> frozenset[str]:
        """Paths of all files of the repo."""
        return self.files.names()

    @cached_property
    def config(self) -> dict[str, Any]:
        """The parsed config.json. Raises Day0Error when it is missing, invalid or not an object."""
        if CONFIG not in self.file_names:
            raise Day0Error(f"{self.source} has no {CONFIG}", hint="give the folder or id of a transformers-style repo")
        return self.read_json(CONFIG)

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """The parsed generation_config.json, or {} where there is none."""
        return self.read_json(GENERATION_CONFIG) if GENERATION_CONFIG in self.file_names else {}

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        """The parsed tokenizer_config.json, or {} where there is none."""
        return self.read_json(TOKENIZER_CONFIG) if TOKENIZER_CONFIG in self.file_names else {}

    @property
    def auto_map(self) -> dict[str, str]:
        """The config's `auto_map` (auto class name -> `module.Class` of the repo's own code), or {}."""
        auto_map = self.config.get("auto_map", {})
        if not isinstance(auto_map, dict) or not all(isinstance(value, str) for value in auto_map.values()):
            raise Day0Error(f"{CONFIG}: auto_map is not an object of strings", hint="correct auto_map in the repo")
        return auto_map

    @cached_property
    def python_files(self) -> tuple[str, ...]:
        """Paths of the repo's own Python files, sorted. They are never imported here."""
        return tuple(sorted(name for name in self.file_names if name.endswith(".py")))

    @cached_property
    def tokenizer_files(self) -> tuple[str, ...]:
        """Names of the tokenizer files that the repo holds, sorted."""
        return tuple(name for name in TOKENIZER_FILES if name in self.file_names)

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer with its special tokens and chat template. Raises Day0Error without a tokenizer.json."""
        from day0.repo.tokenizer import Tokenizer

        return Tokenizer.of_repo(self)

    @cached_property
    def chat_template(self) -> str | None:
        """Jinja source of the (default) chat template, or None."""
        if CHAT_TEMPLATE in self.file_names:
            return self.read_text(CHAT_TEMPLATE)
        template = self.tokenizer_config.get("chat_template")
        if isinstance(template, list):  # several named templates
            named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
            template = named.get("default")
        if template is not None and not isinstance(template, str):
            raise Day0Error(
                f"{TOKENIZER_CONFIG}: chat_template is not a string", hint="correct chat_template in the repo"
            )
        return template

    @property
    def has_weights(self) -> bool:
        """Whether the repo holds safetensors weights at all."""
        return bool(self.weight_files)

    @cached_property
    def weight_files(self) -> tuple[str, ...]:
        """Paths of the safetensors files that hold the model, sorted; () for a repo without weights."""
        return weight_files(self.files, self.file_names)

    @cached_property
    def tensors(self) -> dict[str, TensorHeader]:
        """Header of every tensor by name, sorted by name; {} for a repo without weights.

        Raises Day0Error for a broken header, or where index and files disagree.
        """
        return read_tensor_headers(self.files, self.file_names, headers_only=self.headers_only)

    @cached_property
    def file_hashes(self) -> dict[str, str]:
        """SHA-256 (hex) of every file that makes this model: config, tokenizer, code, weights.

        Weights are never read whole: their headers count, and in a folder samples of their data (see `_sample`).
        """
        optional = {GENERATION_CONFIG, CHAT_TEMPLATE, *self.tokenizer_files, *self.python_files}
        paths = sorted({CONFIG, *(optional & self.file_names)})
        hashes = {path: hashlib.sha256(self.files.read_bytes(path)).hexdigest() for path in paths}
        weights = {path: hashlib.sha256() for path in self.weight_files}
        for tensor in self.tensors.values():
            row = [tensor.name, tensor.dtype, tensor.shape, tensor.start, tensor.end]
            weights[tensor.file].update(json.dumps(row).encode())
        for path, digest in weights.items():
            if self.revision is None and not self.headers_only:
                self._sample(path, digest.update)
            hashes[path] = digest.hexdigest()
        return hashes

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) that tells models apart, by their files; on the hub the commit names the weights."""
        return hashlib.sha256(json.dumps([self.revision, sorted(self.file_hashes.items())]).encode()).hexdigest()

    def _sample(self, path: str, update: Callable[[bytes], None]) -> None:
        """Feeds blocks spread evenly over a weight file's data: other weights of the same shapes differ in them."""
        tensors = [t for t in self.tensors.values() if t.file == path]
        if not tensors:
            return
        first, last = min(t.start for t in tensors), max(t.end for t in tensors)
        step = max(1, (last - first) // _SAMPLED_BLOCKS)
        for start in range(first, last, step):
            update(bytes(self.files.read_range(path, start, min(start + _SAMPLED_BYTES, last))))

    def same_numbers(self, first: str, second: str) -> bool | None:
        """Whether two tensors of a folder are equal, by blocks spread over them; None where weights are not at hand."""
        if self.revision is not None or self.headers_only:
            return None
        a, b = self.tensor_header(first), self.tensor_header(second)
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        step = max(_SAMPLED_BYTES, a.nbytes // _SAMPLED_BLOCKS)
        for start in range(0, a.nbytes, step):
            size = min(_SAMPLED_BYTES, a.nbytes - start)
            one, other = (self.files.read_range(t.file, t.start + start, t.start + start + size) for t in (a, b))
            if one != other:
                return False
        return True

    def read_text(self, path: str) -> str:
        """Text of a small UTF-8 file of the repo."""
        try:
            return self.files.read_bytes(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Day0Error(f"{path} is not UTF-8 text", hint="the file is damaged: download it again") from error

    def read_json(self, path: str) -> dict[str, Any]:
        """Parsed JSON object of a small file of the repo. Raises Day0Error when it is not one."""
        value = parse_json(self.read_text(path), name=path, hint=f"correct {path} in the repo")
        if not isinstance(value, dict):
            raise Day0Error(f"{path} is not a JSON object", hint=f"correct {path} in the repo")
        return value

    def tensor_header(self, name: str) -> TensorHeader:
        """Header of tensor `name`. Raises Day0Error when the repo has no such tensor."""
        if name not in self.tensors:
            raise Day0Error(f"{self.source} has no tensor {name!r}", hint="check the name against the tensor index")
        return self.tensors[name]

    def read_tensor(self, name: str) -> "torch.Tensor":
        """Read tensor `name` (CPU, in the checkpoint's dtype), transferring that tensor's bytes only.

        On the hub each call is a ranged request unless the file is in the cache: before reading many, `fetch_weights`.
        """
        from day0.repo.tensor_data import decode_tensor

        header = self.tensor_header(name)
        return decode_tensor(header, self.files.read_range(header.file, header.start, header.end))

    def fetch_weights(self, names: Iterable[str] | None = None) -> None:
        """Bring the files that hold `names` (all: None) onto this machine, whole, so that reads are local."""
        tensors = self.tensors.values() if names is None else [self.tensor_header(name) for name in names]
        for file in sorted({tensor.file for tensor in tensors}):
            self.files.local_path(file)

    def find_non_finite(self, names: Iterable[str] | None = None) -> list[str]:
        """Names among `names` (all: None) of tensors that hold a NaN or an infinity, in the order given."""
        from day0.repo.tensor_data import is_finite

        chosen = list(self.tensors if names is None else names)
        return [name for name in chosen if not is_finite(self.read_tensor(name))]
