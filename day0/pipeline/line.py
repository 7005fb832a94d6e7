"""Each stage as a step on a workspace, and all of them in order."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from day0.artifacts.alignment import Alignment, Gate
from day0.artifacts.base import Provenance
from day0.artifacts.inventory import Inventory
from day0.artifacts.manifest import Manifest
from day0.artifacts.plan import Plan
from day0.artifacts.provenance import file_hash, produced_by
from day0.artifacts.regular import regular
from day0.errors import Day0Error
from day0.language.recipe import find_recipe, load_recipe, recipe_hash
from day0.pipeline.options import RunOptions
from day0.repo import ModelRepo
from day0.repo.reference_source import find_reference_source
from day0.workspace import PACKAGE, STAGES, Stage, StageState, Workspace

Say = Callable[[str], None]  # tells whoever waits what was reached


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the verdict, the stages that ran, where and why the line stopped (empty: it went through)."""

    verdict: str
    ran: tuple[Stage, ...]
    stopped_at: str = ""
    reused: tuple[Stage, ...] = field(default=())
    why: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class PackageFolder:
    """A generated package: its files with their line counts, and the labels its numbers carry."""

    folder: Path
    files: dict[str, int]
    labels: tuple[str, ...]


class Line:
    """The stages of one model in its workspace.

    `kept_recipe`: the recipe that the workspace was made with, taken again because these options name none.
    """

    def __init__(self, repo: ModelRepo, workspace: Workspace, options: RunOptions) -> None:
        self.repo = repo
        self.workspace = workspace
        made_by = workspace.produced_by("decompose") if options.recipe is None else None
        self.kept_recipe: str | None = made_by.flags.get("recipe") if made_by is not None else None
        self.options = replace(options, recipe=_from_anywhere(options.recipe or self.kept_recipe))

    def states(self) -> list[StageState]:
        """Where each stage stands under these options."""
        return self.workspace.states({stage: self.expected(stage) for stage in STAGES})

    def states_as_run(self) -> list[StageState]:
        """Where each stage stands under the options that it was run with, whatever this line's are."""
        expected: dict[Stage, Provenance] = {}
        for stage in STAGES:
            was = self.workspace.produced_by(stage)
            if was is not None:
                flags = {**was.flags, **self._contents_now(stage, was)}
                expected[stage] = self._made_now(
                    stage, was.device, {name: value for name, value in flags.items() if value is not None}
                )
        return self.workspace.states(expected)

    def _contents_now(self, stage: Stage, was: Provenance) -> dict[str, str | None]:
        """The hashes among a stage's flags, of the same files as they are now; None for a file that is gone."""
        if stage == "map":
            return {"device_hash": _device_hash(was.device)}
        if stage != "decompose":
            return {}
        try:
            return {"recipe_hash": self._hash_of_recipe(was.flags.get("recipe"))}
        except Day0Error:
            return {"recipe_hash": None}

    def expected(self, stage: Stage) -> Provenance:
        """What a stage would record if it ran now."""
        device = self.options.device if stage in ("map", "generate") else "cpu"
        return self._made_now(stage, device, self._flags(stage))

    def _made_now(self, stage: Stage, device: str, flags: dict[str, Any]) -> Provenance:
        return produced_by(
            model_hash=self.repo.hash,
            reference_hash=self._reference_hash,
            device=device,
            flags=flags,
            inputs=self.workspace.input_hashes(stage),
        )

    def before(self, stage: Stage | None) -> list[str]:
        """What a user should know before a stage runs by itself, or the package does (None): that what it reads is
        out of date. Raises Day0Error where a stage before it never ran.
        """
        states = self.states_as_run()[: STAGES.index(stage or "align")]
        self.refuse_missing(states)
        stale = next((state for state in states if state.state == "stale"), None)
        if stale is None:
            return []
        return [f"{stale.stage} is out of date ({stale.why}): {self.run_again(states)} first"]

    def refuse_missing(self, states: Sequence[StageState]) -> None:
        """Raise Day0Error where a stage never ran."""
        for state in states:
            if state.state == "missing":
                missing = regular(self.workspace.path(state.stage))
                raise Day0Error(f"{missing} does not exist", hint=f"{self.run_again(states)} first")

    def run_again(self, states: Sequence[StageState]) -> str:
        """How to bring stages up to date, in words."""
        commands = [f"`{self.workspace.command(state.stage)}`" for state in states if state.state != "fresh"]
        return f"run {', then '.join(commands)}"

    def why_not(self, stage: Stage) -> list[str]:
        """Why the gate of a stage that ran does not hold, a line each; nothing for a stage without a gate."""
        if stage == "decompose":
            return list(Inventory.read(self.workspace.folder).reasons)
        if stage == "align":
            gates = Alignment.read(self.workspace.folder).gates
            return [f"{gate.name}: {gate.detail}" for gate in gates if gate.verdict != "holds"]
        return []

    def dry_run(self, start: Stage | None = None) -> list[tuple[Stage, str, str]]:
        """(stage, "run" or "reuse", why) of every stage, as `run` would do it."""
        planned: list[tuple[Stage, str, str]] = []
        for state in self.states():
            if state.state != "fresh":
                planned.append((state.stage, "run", _why_run(state)))
            elif _asked_for(state.stage, start):
                planned.append((state.stage, "run", "asked for"))
            else:
                planned.append((state.stage, "reuse", "its inputs are unchanged"))
        return planned

    def run(
        self,
        *,
        start: Stage | None = None,
        progress: Callable[[str], AbstractContextManager[Say]] = lambda text: nullcontext(_say_nothing),
    ) -> Outcome:
        """Run every stage that is not fresh, in order, and all from `start` on; stop at the first gate that fails.

        Each stage runs inside `progress("stage (why it runs)")`, which gives what tells of its gates. The workspace is
        locked meanwhile.
        """
        ran: list[Stage] = []
        reused: list[Stage] = []
        with self.workspace.claimed():
            for stage in STAGES:
                state = next(s for s in self.states() if s.stage == stage)
                if state.state == "fresh" and not _asked_for(stage, start):
                    reused.append(stage)
                    verdict = state.verdict
                else:
                    with progress(f"{stage} ({_why_run(state)})") as say:
                        verdict = self._run(stage, say)
                    ran.append(stage)
                if verdict not in ("", "holds"):
                    return Outcome(verdict, tuple(ran), stage, tuple(reused), tuple(self.why_not(stage)))
        return Outcome("holds", tuple(ran), reused=tuple(reused))

    def run_one(self, stage: Stage, say: Say = lambda reached: None) -> str:
        """Run one stage, whatever its state. Returns its verdict, "" for a stage without a gate."""
        with self.workspace.claimed():
            return self._run(stage, say)

    def package(self) -> PackageFolder:
        """The generated package. Raises Day0Error when there is none, or files of it are missing."""
        folder = self.workspace.folder / PACKAGE
        manifest = Manifest.read(folder)
        missing = manifest.missing_files(folder)
        if missing:
            again = f"run `{self.workspace.command('generate')}` again"
            raise Day0Error(f"{folder / missing[0]} is missing", hint=again)
        lines = {name: (folder / name).read_bytes().count(b"\n") for name in manifest.files}
        return PackageFolder(folder, lines, manifest.labels)

    def _run(self, stage: Stage, say: Say) -> str:
        match stage:
            case "decompose":
                return self._decompose()
            case "map":
                return self._map()
            case "generate":
                return self._generate()
            case "align":
                return self._align(say)

    def _flags(self, stage: Stage) -> dict[str, Any]:
        """The options that a stage depends on, those at their defaults left out."""
        return {name: value for name, value in self._given(stage).items() if value not in (None, False)}

    def _given(self, stage: Stage) -> dict[str, Any]:
        o = self.options
        match stage:
            case "decompose":
                return {
                    "recipe": o.recipe,
                    "recipe_hash": self._recipe_hash,
                    "trust": o.trust,
                    "require": o.require,
                    "trust_recipe": o.trust_recipe,
                    "seed": o.seed or None,
                }
            case "map":
                return {"dtype": o.dtype, "device_hash": _device_hash(o.device)}
            case "generate":
                return {"layers": o.layers, "dummy_weights": o.dummy_weights}
            case "align":
                return {
                    "greedy_tokens": None if o.greedy_tokens == RunOptions.greedy_tokens else o.greedy_tokens,
                    "texts": list(o.texts) or None,
                    "seed": o.seed or None,
                    "golden": file_hash(o.golden) if o.golden else None,
                    "stream": o.stream,
                    "matrix": o.matrix,
                }

    @cached_property
    def _reference_hash(self) -> str:
        return find_reference_source(self.repo).revision_hash

    @cached_property
    def _recipe_hash(self) -> str | None:
        """SHA-256 (hex) of the recipe that these options lead to; None where no recipe matches the model."""
        try:
            return self._hash_of_recipe(self.options.recipe)
        except Day0Error as error:
            if self.kept_recipe is None:
                raise
            raise Day0Error(
                f"{self.workspace.folder} was made with a recipe that fails now: {error.message}",
                hint="put it back, or name another with --recipe NAME|FILE",
            ) from error

    def _hash_of_recipe(self, name: str | None) -> str | None:
        recipe = load_recipe(name) if name else find_recipe(self.repo.config)
        return recipe_hash(recipe) if recipe else None

    def inventory(self) -> Inventory:
        """Take the model apart, without writing anything."""
        from day0 import decompose

        o = self.options
        options = decompose.Options(
            recipe=o.recipe, trust=o.trust, require=o.require, trust_recipe=o.trust_recipe, seed=o.seed
        )
        with self._threads():
            return decompose.run(self.repo, options, self.expected("decompose"))

    def _threads(self) -> AbstractContextManager[None]:
        from day0.engine.threads import threads_for

        return threads_for(sum(tensor.numel for tensor in self.repo.tensors.values()))

    def _decompose(self) -> str:
        inventory = self.inventory()
        inventory.write(self.workspace.folder)
        return inventory.verdict

    def _map(self) -> str:
        from day0 import mapping

        options = mapping.MapOptions(dtype=self.options.dtype)
        device = mapping.load_device(self.options.device)
        inventory = Inventory.read(self.workspace.folder)
        mapping.run(inventory, device, options, self.expected("map")).write(self.workspace.folder)
        return ""

    def _generate(self) -> str:
        from day0.generate.stage import Options, run

        folder = self.workspace.folder
        inventory = Inventory.read(folder)
        self._refuse_unless_held(inventory)
        options = Options(
            layers=self.options.layers,
            dummy_weights=self.options.dummy_weights,
            force=self.options.force,
        )
        run(self.repo, inventory, Plan.read(folder), folder, options, self.expected("generate"))
        return ""

    def _refuse_unless_held(self, inventory: Inventory) -> None:
        """Raise Day0Error where `run` would have stopped before generate; without a recipe generate says why itself."""
        if inventory.recipe and not inventory.holds:
            again = self.workspace.command("decompose")
            raise Day0Error(
                f"decompose {inventory.verdict}: {'; '.join(inventory.reasons)}",
                hint=f"correct that and run `{again}`; where behaviour contradicts the recipe, --trust-recipe goes on",
            )

    def _align(self, say: Say) -> str:
        from day0.align.stage import Options, run

        folder = self.workspace.folder
        refuse_without_weights(self.repo, folder / PACKAGE, "align")
        o = self.options
        options = Options(
            greedy_tokens=o.greedy_tokens,
            texts=o.texts,
            seed=o.seed,
            golden=o.golden,
            stream=o.stream,
            matrix=o.matrix,
        )
        inventory = Inventory.read(folder)
        made_by = self.expected("align")
        own_code = find_reference_source(self.repo).kind == "remote_code"
        with self._threads():
            if own_code and self.options.trust is not None:
                from day0.align.sandboxed import run_trusted

                trust = self.options.trust
                alignment = run_trusted(self.repo, folder / PACKAGE, inventory, options, made_by, trust=trust)
            else:

                def tell(gate: Gate) -> None:
                    say(f"align: {gate.name}: {gate.verdict}")

                alignment = run(self.repo, folder / PACKAGE, inventory, options, made_by, tell=tell)
        alignment.write(folder)
        return alignment.holds


def _say_nothing(reached: str) -> None:
    pass


def _from_anywhere(recipe: str | None) -> str | None:
    """A recipe's name, or its file by a path that leads there from any folder."""
    return str(Path(recipe).absolute()) if recipe and Path(recipe).suffix in (".yaml", ".yml") else recipe


def _device_hash(device: str) -> str | None:
    """SHA-256 (hex) of a device file; None for a device of the catalogue, or a file that is not there."""
    path = Path(device)
    return file_hash(path) if path.suffix in (".yaml", ".yml") and path.is_file() else None


def refuse_without_weights(repo: ModelRepo, package: Path, what: str) -> None:
    """Raise Day0Error where `what` would read weights that the repo does not have."""
    if not repo.has_weights and not Manifest.read(package).dummy_weights:
        raise Day0Error(
            f"{what} needs weights, and {repo.source} holds none: decompose, map and generate go without",
            hint="add its .safetensors files, or make a package of random weights: day0 generate --dummy-weights",
        )


def _why_run(state: StageState) -> str:
    """Why a stage runs, for those who asked for it: an artifact that is not there yet is no error."""
    return f"no {state.artifact} yet" if state.state == "missing" else state.why or "asked for"


def _asked_for(stage: Stage, start: Stage | None) -> bool:
    return start is not None and STAGES.index(stage) >= STAGES.index(start)
