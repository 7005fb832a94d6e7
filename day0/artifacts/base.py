"""The base of every artifact: validated, versioned, written atomically, and saying what produced it."""

import errno
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from day0.artifacts.regular import regular
from day0.artifacts.text import parse_yaml
from day0.errors import Day0Error

READER_SECONDS = 5.0  # how long the writing of a pipe waits for its reader


class Record(BaseModel):
    """A frozen record; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Provenance(Record):
    """What produced an artifact."""

    day0_version: str
    model_hash: str
    reference_hash: str = ""
    kernel_set: str = ""
    device: str = ""
    driver: str = ""
    versions: dict[str, str] = {}
    flags: dict[str, Any] = {}
    inputs: dict[str, str] = {}  # artifact file name -> sha256 of what was read


class Artifact(Record):
    """A file in a workspace. Subclasses set FILE (its name) and bump VERSION when a field changes its meaning."""

    FILE: ClassVar[str]
    VERSION: ClassVar[int] = 1

    schema_version: int = 1
    produced_by: Provenance

    def dump(self) -> str:
        data = self.model_dump(mode="json")
        if self.FILE.endswith(".yaml"):
            return yaml.safe_dump(data, sort_keys=False, width=120, allow_unicode=True)
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"

    def write(self, folder: Path, name: str = "") -> Path:
        """Write into the workspace atomically, as FILE unless `name` says otherwise.

        Raises Day0Error when that fails (read-only folder, full disk).
        """
        path = folder / (name or self.FILE)
        write_atomically(path, self.dump().encode())
        return path

    @classmethod
    def read(cls, folder: Path, name: str = "") -> Self:
        """Read from the workspace. Raises Day0Error when missing, unreadable, invalid, or of another version."""
        path = folder / (name or cls.FILE)
        again = "delete it and run its stage again"
        try:
            text = regular(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise Day0Error(f"{path} does not exist", hint="run the stage that writes it first") from None
        except (OSError, UnicodeDecodeError) as error:
            raise Day0Error(f"cannot read {path}: {error}", hint="check the file's permissions") from error
        try:
            data = parse_yaml(text, name=str(path), hint=again) if cls.FILE.endswith(".yaml") else json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Day0Error(f"{path} is not valid: {error}".splitlines()[0], hint=again) from error
        version = data.get("schema_version") if isinstance(data, dict) else None
        if version != cls.VERSION:
            raise Day0Error(
                f"{path} has schema version {version}, this day0 writes {cls.VERSION}", hint="run its stage again"
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(p) for p in first["loc"])
            raise Day0Error(f"{path}: {where}: {first['msg']}", hint=again) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a killed or failed run leaves the old content or the new, never a part of it.

    A link stays one: what it leads to is written. Raises Day0Error when that fails.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # a device or a pipe, named by the user: it must stay what it is
            _write_in_place(path, content)
            return
        target = path.resolve()
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes files private; an artifact is as readable as any file its user creates.
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Day0Error(
            f"cannot write {path}: {error.strerror}", hint="free space or choose another workspace with -w"
        ) from error


def _write_in_place(path: Path, content: bytes) -> None:
    deadline = time.monotonic() + READER_SECONDS
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # to open a pipe would else wait for ever
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() >= deadline:
                raise Day0Error(f"cannot write {path}: nobody reads it", hint="start its reader first") from error
            time.sleep(0.05)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
