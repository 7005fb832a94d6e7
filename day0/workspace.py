"""A model's workspace `<name>.day0/`: whose it is, which artifacts stand in it, and which of them are out of date."""

import fcntl
import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import day0
from day0.artifacts.alignment import Alignment
from day0.artifacts.base import Artifact, Provenance, write_atomically
from day0.artifacts.inventory import Inventory
from day0.artifacts.manifest import Manifest
from day0.artifacts.plan import Plan
from day0.artifacts.provenance import file_hash, kernel_set_hash, package_versions
from day0.artifacts.regular import regular
from day0.errors import Day0Error
from day0.repo.files import WORKSPACE_IDENTITY, WORKSPACE_SUFFIX

SUFFIX = WORKSPACE_SUFFIX
IDENTITY = WORKSPACE_IDENTITY
PACKAGE = "package"
MANIFEST = f"{PACKAGE}/{Manifest.FILE}"
LOCK = ".lock"

Stage = Literal["decompose", "map", "generate", "align"]
STAGES: tuple[Stage, ...] = ("decompose", "map", "generate", "align")

_RECORDS: dict[Stage, type[Artifact]] = {"decompose": Inventory, "map": Plan, "align": Alignment}
ARTIFACTS: dict[Stage, str] = {**{stage: record.FILE for stage, record in _RECORDS.items()}, "generate": MANIFEST}

# Stages whose findings depend on the versions of the libraries that the reference runs on.
_ASK_THE_REFERENCE: tuple[Stage, ...] = ("decompose", "align")
# Flags that stand for the content of a file that another one names.
_CONTENTS = {"recipe_hash": ("recipe", "recipe"), "device_hash": ("device", "device file")}
# Flags whose option is not called as they are.
_OPTIONS = {"texts": "--text", "trust": "--trust-remote-code"}


@dataclass(frozen=True)
class StageState:
    """Where a stage stands. `why` is empty for a fresh one; `verdict` is its gate's, where it has one and ran."""

    stage: Stage
    artifact: str
    state: Literal["fresh", "stale", "missing", "invalid"]
    why: str = ""
    verdict: str = ""


class ModelChanged(Day0Error):
    """A workspace is of the model, but of other files of it. `workspace`: as it would be of the files there are now."""

    def __init__(self, message: str, *, hint: str, workspace: "Workspace") -> None:
        super().__init__(message, hint=hint)
        self.workspace = workspace


class Workspace:
    """A workspace folder. Build it with `Workspace.of_model` or `Workspace.open`.

    `source`: where its model lies, a hub id or an absolute path; `revision`: the commit, of a hub id; `model_files`:
    file -> SHA-256 (hex) of what makes the model.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.name = str(identity["name"])
        self.source = str(identity["source"])
        self.model_hash = str(identity["model_hash"])
        revision = identity.get("revision")
        self.revision = None if revision is None else str(revision)
        self.model_files: dict[str, str] = dict(identity.get("model_files", {}))

    @classmethod
    def of_model(
        cls,
        name: str,
        source: str,
        model_hash: str,
        folder: Path | None = None,
        *,
        revision: str | None = None,
        model_files: Mapping[str, str] | None = None,
    ) -> "Workspace":
        """The workspace of a model, `./<name>.day0` unless `folder` says otherwise. `claimed` writes it.

        Raises Day0Error where the folder holds another model's workspace, or something else; ModelChanged where it
        holds this model's, made when its files were others.
        """
        folder = folder or Path(f"{name}{SUFFIX}")
        made = cls(
            folder,
            {
                "name": name,
                "source": source,
                "model_hash": model_hash,
                "revision": revision,
                "model_files": model_files or {},
            },
        )
        if (folder / IDENTITY).exists():
            cls.open(folder)._refuse_other(made)
        elif folder.exists() and (not folder.is_dir() or any(p.name != LOCK for p in folder.iterdir())):
            raise Day0Error(f"{folder} exists and is no workspace", hint="choose another folder with -w")
        return made

    def _refuse_other(self, other: "Workspace") -> None:
        """Raise Day0Error unless `other` is of the same model as it was when this workspace was made."""
        if other.model_hash == self.model_hash:
            return
        choose = f"choose another folder with -w, or remove {self.folder}"
        if other.source != self.source:
            raise Day0Error(
                f"{self.folder} is the workspace of another model: {self.source} ({self.model_hash[:12]})", hint=choose
            )
        if other.revision != self.revision:
            raise Day0Error(
                f"{self.folder} was made from revision {self.revision} of {self.source}, not {other.revision}",
                hint=choose,
            )
        then, now = self.model_files, other.model_files
        changed = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise ModelChanged(
            f"files of {self.source} changed since {self.folder} was made: {', '.join(changed[:5])}{more}",
            hint=f"start over with them: {choose}; or put the files back",
            workspace=other,
        )

    @classmethod
    def open(cls, folder: Path) -> "Workspace":
        """An existing workspace. Raises Day0Error when the folder is none."""
        try:
            identity = json.loads(regular(folder / IDENTITY).read_text(encoding="utf-8"))
            return cls(folder, identity)
        except (FileNotFoundError, NotADirectoryError):
            raise Day0Error(f"{folder} is no workspace", hint="run `day0 decompose REPO` first") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Day0Error(f"{folder / IDENTITY} is damaged", hint=f"remove {folder} and run again") from error

    @classmethod
    def find(cls, folder: Path | None = None) -> "Workspace":
        """The workspace named, or the only one in the current folder. Raises Day0Error when that is not one."""
        if folder is not None:
            return cls.open(folder)
        found = sorted(path.parent for path in Path().glob(f"*{SUFFIX}/{IDENTITY}"))
        if len(found) == 1:
            return cls.open(found[0])
        if found:
            names = ", ".join(str(path) for path in found)
            raise Day0Error(f"{len(found)} workspaces stand here: {names}", hint="name one with -w, or name the model")
        raise Day0Error("no workspace stands here", hint="name the model, or a workspace with -w")

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Lock the workspace and write whose it is. Taken away again when what runs inside fails and left nothing else.

        Raises Day0Error when the folder cannot be written, or another run holds it.
        """
        new = not (self.folder / IDENTITY).exists()
        missing = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        try:
            with self.locked():
                try:
                    self.claim()
                    yield
                except BaseException:
                    if new:
                        self._unclaim()
                    raise
        except BaseException:
            with suppress(OSError):  # not empty: then it holds something that stays
                for folder in missing:
                    folder.rmdir()
            raise

    def _unclaim(self) -> None:
        with suppress(OSError):
            if all(path.name in (IDENTITY, LOCK) for path in self.folder.iterdir()):
                for name in (IDENTITY, LOCK):
                    (self.folder / name).unlink(missing_ok=True)

    def claim(self) -> None:
        """Write whose workspace this is. Raises Day0Error when the folder cannot be written."""
        identity = {
            "name": self.name,
            "source": self.source,
            "revision": self.revision,
            "model_hash": self.model_hash,
            "model_files": self.model_files,
            "day0_version": day0.__version__,
        }
        write_atomically(self.folder / IDENTITY, (json.dumps(identity, indent=1) + "\n").encode())

    @contextmanager
    def locked(self, *, wait_seconds: float = 5.0) -> Iterator[None]:
        """Keep other runs out of the workspace. The lock ends with the process that holds it, however that ends.

        Raises Day0Error when another run holds it for longer than `wait_seconds`.
        """
        deadline = time.monotonic() + wait_seconds
        while True:
            handle = self._open_lock()
            try:
                self._wait_for_lock(handle, deadline)
                if not self._is_the_lock(handle):  # its holder took the workspace away: see `claimed`
                    self._check_time(handle, deadline)
                    continue
                with suppress(OSError):  # a full disk: the number only tells others who holds the lock
                    os.ftruncate(handle, 0)
                    os.write(handle, str(os.getpid()).encode())
                yield
                return
            finally:
                os.close(handle)

    def _open_lock(self) -> int:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise Day0Error(
                f"cannot write in {self.folder}: {error.strerror}", hint="choose another workspace with -w"
            ) from error

    def _is_the_lock(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.folder / LOCK))
        except FileNotFoundError:
            return False

    def _wait_for_lock(self, handle: int, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self._check_time(handle, deadline)
                time.sleep(0.05)

    def _check_time(self, handle: int, deadline: float) -> None:
        """Raise Day0Error when the wait for the lock has lasted long enough."""
        if time.monotonic() >= deadline:
            holder = os.pread(handle, 32, 0).decode(errors="replace") or "unknown"
            raise Day0Error(
                f"{self.folder} is in use by another run (process {holder})",
                hint="wait for it to end, or use another workspace with -w",
            ) from None

    def command(self, stage: Stage) -> str:
        """The command that runs a stage of this workspace, as a user would type it."""
        return f"day0 {stage} -w {shlex.quote(str(self.folder))}"

    def path(self, stage: Stage) -> Path:
        """The file that says what a stage produced."""
        return self.folder / ARTIFACTS[stage]

    def input_hashes(self, stage: Stage) -> dict[str, str]:
        """What a stage reads in the workspace, as it is now: file -> SHA-256. Missing files are left out."""
        if stage == "decompose":
            return {}
        names = {"map": [Inventory.FILE], "generate": [Inventory.FILE, Plan.FILE]}.get(stage)
        if names is None:
            package = self.folder / PACKAGE
            files = sorted(p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
            names = [p.relative_to(self.folder).as_posix() for p in files]
        return {name: file_hash(self.folder / name) for name in names if (self.folder / name).is_file()}

    def edited_files(self) -> list[str]:
        """Files of the package, as paths in the workspace, that a user edited since generate wrote them."""
        try:
            manifest = Manifest.read(self.folder / PACKAGE)
        except Day0Error:
            return []
        return [f"{PACKAGE}/{name}" for name in manifest.edited_files(self.folder / PACKAGE)]

    def produced_by(self, stage: Stage) -> Provenance | None:
        """What produced a stage's artifact; None where there is none, or it is not valid."""
        try:
            return self._read(stage)[0]
        except Day0Error:
            return None

    def states(self, expected: Mapping[Stage, Provenance] | None = None) -> list[StageState]:
        """Where every stage stands. `expected` holds what a stage would record if it ran now; without it, a stage is
        compared with the model, the files that it read, the kernels and the libraries, but not with flags."""
        states: list[StageState] = []
        blocked = ""
        for stage in STAGES:
            state = self._state(stage, (expected or {}).get(stage))
            if state.state == "fresh" and blocked:
                state = StageState(stage, state.artifact, "stale", f"{blocked} has to run first", state.verdict)
            if state.state != "fresh" and not blocked:
                blocked = stage
            states.append(state)
        return states

    def _state(self, stage: Stage, expected: Provenance | None) -> StageState:
        name = ARTIFACTS[stage]
        if not self.path(stage).is_file():
            return StageState(stage, name, "missing", f"{name} does not exist")
        try:
            produced_by, verdict = self._read(stage)
        except Day0Error as error:
            return StageState(stage, name, "invalid", error.message)
        why = self._why_stale(stage, produced_by, expected)
        return StageState(stage, name, "stale" if why else "fresh", why, verdict)

    def _read(self, stage: Stage) -> tuple[Provenance, str]:
        """What produced a stage's artifact, and its gate's verdict ("" for a stage without a gate)."""
        if stage == "generate":
            return self._read_manifest(), ""
        artifact = _RECORDS[stage].read(self.folder)
        if isinstance(artifact, Inventory):
            return artifact.produced_by, artifact.verdict
        return artifact.produced_by, artifact.holds if isinstance(artifact, Alignment) else ""

    def _read_manifest(self) -> Provenance:
        folder = self.folder / PACKAGE
        manifest = Manifest.read(folder)
        missing = manifest.missing_files(folder)
        if missing:
            raise Day0Error(f"{', '.join(f'{PACKAGE}/{name}' for name in missing)} is missing", hint="generate again")
        return manifest.produced_by

    def _why_stale(self, stage: Stage, was: Provenance, expected: Provenance | None) -> str:
        """Why an artifact is out of date, in words; empty when it is not."""
        if was.model_hash != self.model_hash:
            return "the model changed"
        now = self.input_hashes(stage)
        changed = sorted(name for name in now.keys() | was.inputs.keys() if now.get(name) != was.inputs.get(name))
        if changed:
            return f"{', '.join(changed)} changed"
        if was.kernel_set != kernel_set_hash():
            return "the kernels changed"
        if was.day0_version != day0.__version__:
            return f"made by day0 {was.day0_version}"
        if stage in _ASK_THE_REFERENCE:
            here = package_versions()
            for name in ("torch", "transformers"):
                if was.versions.get(name) != here.get(name):
                    return f"{name} is {here.get(name, 'not here')}, it was {was.versions.get(name, 'not there')}"
        if expected is None:
            return ""
        if was.reference_hash != expected.reference_hash:
            return "the reference implementation changed"
        return "; ".join(_changed_options(was, expected))


def _changed_options(was: Provenance, now: Provenance) -> list[str]:
    """How the options of two runs of a stage differ, as a user would say it."""
    before = {**was.flags, "device": was.device}
    after = {**now.flags, "device": now.device}
    changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    words = [_change(key, before.get(key), after.get(key)) for key in changed if key not in _CONTENTS]
    # Another file has other content: its name says it all.
    contents = [_CONTENTS[key] for key in changed if key in _CONTENTS]
    return words + [f"the {what} changed" for key, what in contents if key not in changed]


def _change(key: str, before: Any, after: Any) -> str:
    option = _OPTIONS.get(key) or f"--{key.replace('_', '-')}"
    if before is None or after is None:
        now, value = ("is given now", after) if before is None else ("is not given now", before)
        return f"{_given(option, value)} {now}"
    if key == "golden":
        return "the recording changed"
    return f"{_given(option, after)} is given now, it was {_given('', before)}"


def _given(option: str, value: Any) -> str:
    """An option as it stands on the command line; of a hash, a value that nobody typed, the option alone."""
    if value is True or option == "--golden":
        return option
    return f"{option} {', '.join(value) if isinstance(value, list) else value}".strip()
