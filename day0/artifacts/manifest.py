"""manifest.json: what a generated package was made from, and the hashes of its files."""

import json
from pathlib import Path
from typing import ClassVar

from pydantic import ValidationError

from day0.artifacts.base import Provenance, Record
from day0.artifacts.provenance import file_hash
from day0.artifacts.regular import regular
from day0.errors import Day0Error


class Manifest(Record):
    """The facts of a package. `whole`: all layers of the model stand in it; `files`: name -> SHA-256 (hex) as written.

    `labels` are what every number made with the package must carry.
    """

    FILE: ClassVar[str] = "manifest.json"

    model: str
    source: str
    model_hash: str
    recipe: str
    layers: int
    whole: bool
    dummy_weights: bool
    labels: tuple[str, ...]
    produced_by: Provenance
    files: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest of the package in `folder`. Raises Day0Error when there is none, or it is damaged."""
        path = folder / cls.FILE
        try:
            return cls.model_validate(json.loads(regular(path).read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise Day0Error(f"{folder} holds no package", hint="run day0 generate first") from None
        except (OSError, ValueError, RecursionError) as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else None
            where = f": {'.'.join(str(p) for p in first['loc'])}: {first['msg']}" if first else ""
            raise Day0Error(f"{path} is damaged{where}", hint="generate again with --force") from error

    def missing_files(self, folder: Path) -> list[str]:
        """Files that generate wrote and that are no longer in `folder`."""
        return [name for name in self.files if not (folder / name).is_file()]

    def edited_files(self, folder: Path) -> list[str]:
        """Files in `folder` whose content is no longer what generate wrote."""
        return [n for n, digest in self.files.items() if (folder / n).is_file() and file_hash(folder / n) != digest]
