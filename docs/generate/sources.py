"""Read source files without importing them: classes, signatures and docstrings, by griffe."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import griffe

logging.getLogger("griffe").setLevel(logging.ERROR)  # one entry may describe two parameters

_ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class FoundClass:
    """A class of a package: its name, and its docstring."""

    name: str
    docstring: str


def member(module: str, name: str) -> griffe.Class | griffe.Function:
    """Return a class or a function of a module."""
    definition = _visited(_ROOT.joinpath(*module.split(".")).with_suffix(".py")).members[name]
    if not isinstance(definition, griffe.Class | griffe.Function):
        raise TypeError(f"{module}.{name} is neither a class nor a function")
    return definition


def subclasses(package: str, base: str) -> list[FoundClass]:
    """Return the classes of a package that name `base` as their base, in the order of the alphabet."""
    files = [file for file in (_ROOT / package).rglob("*.py") if f"({base})" in file.read_text("utf-8")]
    classes = [
        FoundClass(item.name, item.docstring.value if item.docstring else "")
        for file in files
        for item in _visited(file).classes.values()
        if isinstance(item, griffe.Class) and base in {str(parent) for parent in item.bases}
    ]
    return sorted(classes, key=lambda item: item.name)


@cache
def _visited(file: Path) -> griffe.Module:
    name = ".".join(file.relative_to(_ROOT).with_suffix("").parts)
    return griffe.visit(name, filepath=file, code=file.read_text("utf-8"))
