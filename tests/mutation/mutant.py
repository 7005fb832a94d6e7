"""Makes one module of this process the mutant: nothing is written, the import finds a changed source."""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from tests.mutation.mutate import Mutation, compile_mutant


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return self._code


class _Finder(MetaPathFinder):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        self._name = name
        self._loader = _Loader(name, path, code)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._loader.path, loader=self._loader)


def install(name: str, path: Path, mutation: Mutation) -> None:
    """From now on `import <name>` gives the file at `path` with that mutation. The module must not be imported yet."""
    if name in sys.modules:
        raise ValueError(f"{name} is already imported")
    code = compile_mutant(mutation, path.read_text(encoding="utf-8"))
    sys.meta_path.insert(0, _Finder(name, str(path), code))
