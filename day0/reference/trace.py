"""Trace a reference at the grain of its authors' own modules, functions, named tensors and operations."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Bounds on what is kept. A small model's logits are far below the first, what its operators hand on below the second;
# what is larger (the pairwise decay of a chunk) is an intermediate of one operator.
MAX_ELEMENTS = 1 << 19
MAX_LINE_ELEMENTS = 1 << 17
# A line inside a loop over chunks or tokens runs often; operators hand on what a few runs of a line make.
MAX_RUNS_OF_A_LINE = 6
# Operations whose result is a choice -> where their axis stands among the arguments. What they choose by is kept of
# every run, since a reference may choose token by token; so many runs of a line at most.
_CHOOSING = {"topk": 2, "sort": 1, "argsort": 1}
MAX_CHOICES_OF_A_LINE = 4096


@dataclass(frozen=True)
class Call:
    """One call of a module or function: where, and its arguments that are no tensors (name -> value)."""

    location: str
    function: str
    arguments: dict[str, Any]


@dataclass
class Trace:
    """Everything that a reference computed in one call, in order.

    `tensors` maps a location to the value at that moment. Locations: `layers.3.self_attn.q_proj:out` (a module's
    output; `:in` its inputs), `layers.3.self_attn:chunk_delta_rule.query` (a function's argument),
    `...:chunk_delta_rule.return[0]`, `layers.3.self_attn:forward.beta` (a local when the function returned),
    `layers.3:forward.line 1320 add` (an operation's result that has no name). `#2` marks the second call of one
    function in one module, or the second run of a line. Paths are relative to the text model.

    `scores` maps a line that chooses (a top-k, a sort) to what it chose by, run by run, the candidates last.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    scores: dict[str, list[Tensor]] = field(default_factory=dict)


def trace(model: nn.Module, call: Callable[[], Any], *, operations: bool = True) -> tuple[Trace, Any]:
    """Run `call`, which runs `model`, and record it. Returns the trace and what `call` returned.

    Functions are seen by a profile hook limited to the files that define the model's modules, modules by forward
    hooks (a decorated or replaced forward is seen as well), operations (`operations`) by a torch function mode. Values
    are copied, so that later writes in place do not change them. One thread; another Python profiler pauses meanwhile.
    """
    recorder = _Recorder(model, operations)
    with recorder:
        result = call()
    return recorder.trace, result


def functions_called(traces: Sequence[Trace]) -> list[str]:
    """The modeling file's own functions with the plain arguments they got, each once: `chunk_rule(chunk_size=64)`."""
    seen: dict[str, None] = {}
    for each in traces:
        for call in each.calls:
            if ":" in call.location and call.function != "forward":
                arguments = ", ".join(f"{k}={v}" for k, v in call.arguments.items() if v is not None)
                seen[f"{call.function}({arguments})"] = None
    return list(seen)


def module_ports(recorded: Trace) -> dict[str, tuple[str, ...]]:
    """Shapes that went into and came out of each module, by `path:in` and `path:out`."""
    found: dict[str, tuple[str, ...]] = {}
    for location, tensor in recorded.tensors.items():
        path, _, port = location.partition(":")
        side = "in" if port.startswith("in") else "out" if port.startswith("out") else ""
        if side:
            found[f"{path}:{side}"] = (*found.get(f"{path}:{side}", ()), f"{port} {list(tensor.shape)}")
    return found


def text_model_path(model: nn.Module) -> str:
    """Path of the module that holds the decoder layers ("model", "model.language_model"); "" when there is none."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    count = getattr(text, "num_hidden_layers", None)
    held = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == count
        and name.rpartition(".")[2] in ("layers", "blocks")
        and not {"visual", "vision", "audio"} & set(re.split(r"[._]", name))
    ]
    return min(held, key=lambda name: name.count(".")).rpartition(".")[0] if held else ""


class _Recorder(TorchFunctionMode):
    def __init__(self, model: nn.Module, operations: bool) -> None:
        super().__init__()
        self.trace = Trace()
        self.model = model
        self.operations = operations
        self.files = {
            id(sys.modules[module].__dict__)
            for module in {type(m).__module__ for m in model.modules()}
            if module in sys.modules and not module.startswith("torch.")
        }
        self.weights = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
        self.copies: dict[tuple[Any, ...], Tensor] = {}
        # Keeps what was copied alive: a freed tensor's address would come again with other contents.
        self.alive: list[Tensor] = []
        self.path: list[str] = [""]
        self.frames: dict[int, str] = {}
        self.counts: Counter[str] = Counter()
        self.handles: list[Any] = []

    def __enter__(self) -> "_Recorder":
        root = text_model_path(self.model)
        for name, module in self.model.named_modules():
            shown = name.removeprefix(f"{root}.") if name != root else "model"
            self.handles.append(module.register_forward_pre_hook(self._enter_module(shown), with_kwargs=True))
            self.handles.append(module.register_forward_hook(self._leave_module))
        if self.operations:
            super().__enter__()  # type: ignore[no-untyped-call]
        self.profiler = sys.getprofile()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exception: Any) -> None:
        sys.setprofile(self.profiler)
        if self.operations:
            super().__exit__(*exception)  # type: ignore[no-untyped-call]
        for handle in self.handles:
            handle.remove()

    def _enter_module(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            location = self._numbered(path)
            self.path.append(location)
            arguments = {str(i): a for i, a in enumerate(args)} | kwargs
            plain = {k: v for k, v in arguments.items() if isinstance(v, bool | int | float | str | None)}
            self.trace.calls.append(Call(location, type(module).__name__, plain))
            self._keep_all(f"{location}:in", args)
            for name, value in kwargs.items():
                self._keep_all(f"{location}:in.{name}", value)

        return hook

    def _leave_module(self, module: nn.Module, args: Any, out: Any) -> None:
        self._keep_all(f"{self.path.pop()}:out", out)

    def _profile(self, frame: FrameType, event: str, value: Any) -> None:
        if event not in ("call", "return") or id(frame.f_globals) not in self.files:
            return
        name = frame.f_code.co_name
        if name.startswith("<") or name.startswith("__"):
            return
        if event == "call":
            location = self._numbered(f"{self.path[-1]}:{name}")
            self.frames[id(frame)] = location
            arguments = {k: v for k, v in frame.f_locals.items() if k != "self"}
            plain = {k: v for k, v in arguments.items() if isinstance(v, bool | int | float | str | None)}
            self.trace.calls.append(Call(location, name, plain))
            if name != "forward":  # a forward's arguments are its module's inputs
                for argument, tensor in arguments.items():
                    self._keep_all(f"{location}.{argument}", tensor)
            return
        location = self.frames.pop(id(frame), "")
        if location:
            self._keep_all(f"{location}.return", value)
            for local, held in list(frame.f_locals.items()):
                if local != "self":
                    self._keep_all(f"{location}.{local}", held)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor | tuple | list):
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and id(frame) not in self.frames:
                frame = frame.f_back
            if frame is not None:
                operation = getattr(func, "__name__", "operation")
                line = f"{self.frames[id(frame)]}.line {frame.f_lineno} {operation}"
                self.counts[line] += 1
                if operation in _CHOOSING:
                    self._keep_scores(line, args, kwargs or {}, _CHOOSING[operation])
                if self.counts[line] <= MAX_RUNS_OF_A_LINE:
                    run = self.counts[line]
                    self._keep_all(line if run == 1 else f"{line}#{run}", result, MAX_LINE_ELEMENTS)
        return result

    def _keep_scores(self, line: str, args: tuple[Any, ...], kwargs: dict[str, Any], axis_argument: int) -> None:
        scores = args[0] if args else kwargs["input"]
        axis = kwargs.get("dim", args[axis_argument] if len(args) > axis_argument else -1)
        with torch._C.DisableTorchFunction():
            few = self.counts[line] <= MAX_CHOICES_OF_A_LINE and 0 < scores.numel() <= MAX_LINE_ELEMENTS
            if few and scores.is_floating_point() and isinstance(axis, int):
                self.trace.scores.setdefault(line, []).append(scores.detach().movedim(axis, -1).clone())

    def _numbered(self, location: str) -> str:
        self.counts[location] += 1
        return location if self.counts[location] == 1 else f"{location}#{self.counts[location]}"

    def _keep_all(self, location: str, value: Any, most: int = MAX_ELEMENTS) -> None:
        for index, tensor in _tensors(value):
            self._keep(f"{location}{index}", tensor, most)

    def _keep(self, location: str, tensor: Tensor, most: int) -> None:
        with torch._C.DisableTorchFunction():
            if not 0 < tensor.numel() <= most:
                return
            storage = tensor.untyped_storage().data_ptr()
            if storage in self.weights:
                return
            key = (storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)
            if key not in self.copies:
                self.copies[key] = tensor.detach().clone()
                self.alive.append(tensor)
            self.trace.tensors.setdefault(location, self.copies[key])


def _tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """("", tensor) for a tensor, ("[i]", item) for the tensors of a tuple, list, or output object."""
    if isinstance(value, Tensor):
        yield "", value
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) <= 16:
        for i, item in enumerate(value):
            if isinstance(item, Tensor):
                yield f"[{i}]", item
