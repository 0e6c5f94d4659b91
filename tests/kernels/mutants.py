"""Copies of a module with a line changed: what a test must be able to tell from the module itself."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def mutant(name: str, changes: dict[str, str], folder: Path) -> ModuleType:
    """Load a changed copy of a module beside it.

    Args:
        name: of the module.
        changes: what to replace, everywhere, and by what; that the module has it is asserted.
        folder: for the copy, for Triton reads the source of a kernel from its file.
    """
    origin = importlib.util.find_spec(name)
    assert origin is not None
    assert origin.origin is not None
    source = Path(origin.origin).read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in source, f"{name} has no {old!r} any more: say anew what its mask is"
        source = source.replace(old, new)
    path = folder / f"mutant_{name.replace('.', '_')}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
