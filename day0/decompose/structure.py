"""Structure: the reference built at full size on the meta device, or its source read when it cannot be built."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from day0.reference.load import build_reference
from day0.reference.trace import text_model_path
from day0.repo.model_repo import ModelRepo
from day0.repo.reference_source import ReferenceSource, read_module


@dataclass(frozen=True)
class Module:
    """A module that owns weights: path relative to the model, class, and (name, shape) of each weight."""

    path: str
    class_name: str
    weights: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Structure:
    """The text model. `parameters` counts trainable numbers, `saved` those and the buffers that a checkpoint holds."""

    class_name: str
    parameters: int
    saved: int
    modules: tuple[Module, ...]


def build_structure(config: object) -> Structure:
    """Build the reference on the meta device. Raises Day0Error when its class cannot be built."""
    model = build_reference(config, device="meta")
    other = _other_towers(model)
    parameters = {n: p.numel() for n, p in model.named_parameters() if not n.startswith(other)}
    # Tied tensors stand twice in the state dict, once among the parameters.
    saved = {id(t): t.numel() for n, t in model.state_dict(keep_vars=True).items() if not n.startswith(other)}
    modules = []
    for path, module in model.named_modules():
        owned = [*module.named_parameters(recurse=False)]
        if owned and not path.startswith(other):
            shapes = tuple((name, tuple(parameter.shape)) for name, parameter in owned)
            modules.append(Module(path, type(module).__name__, shapes))
    return Structure(type(model).__name__, sum(parameters.values()), sum(saved.values()), tuple(modules))


def _other_towers(model: nn.Module) -> tuple[str, ...]:
    """Path prefixes of what stands beside the text model in a wrapper of several modalities; () without a wrapper."""
    root = text_model_path(model)
    wrapper, _, name = root.rpartition(".")
    if not wrapper:
        return ()
    return tuple(f"{wrapper}.{child}." for child, _ in model.get_submodule(wrapper).named_children() if child != name)


@dataclass(frozen=True)
class SourceClass:
    """A module class as its source file defines it: attributes that hold modules or parameters -> what makes them."""

    file: str
    name: str
    attributes: dict[str, str]


def read_source(source: ReferenceSource, repo: ModelRepo) -> list[SourceClass]:
    """Module classes of the reference's source files, by reading them only: nothing is imported or run."""
    classes: list[SourceClass] = []
    for path, _ in source.module_files:
        if not path.endswith(".py"):
            continue
        try:
            tree = ast.parse(read_module(source, repo, path))
        except (SyntaxError, ValueError):
            continue  # a file that Python cannot parse defines no class that could be built
        found = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        classes += [SourceClass(path, c.name, made) for c in found if (made := dict(_made_in_init(c.body)))]
    return classes


def _made_in_init(body: Iterable[ast.stmt]) -> Iterable[tuple[str, str]]:
    """(attribute, expression) of every `self.x = Something(...)` in __init__."""
    for method in body:
        if not (isinstance(method, ast.FunctionDef) and method.name == "__init__"):
            continue
        for node in ast.walk(method):
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
                continue
            for target in node.targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    maker = ast.unparse(node.value.func)
                    if maker.rpartition(".")[2][:1].isupper():
                        yield target.attr, ast.unparse(node.value)
