"""Read the packages without importing them: classes, signatures and docstrings, by griffe."""

from __future__ import annotations

import logging
from collections.abc import Iterator
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


@cache
def package(name: str) -> griffe.Module:
    """Load a package with its submodules."""
    loaded = griffe.load(name, search_paths=[str(_ROOT)], docstring_parser="google", resolve_aliases=False)
    if not isinstance(loaded, griffe.Module):
        raise TypeError(f"{name} is not a package")
    return loaded


def subclasses(name: str, base: str) -> list[FoundClass]:
    """Return the classes of a package that name `base` as their base, in the order of the alphabet."""
    found = [
        FoundClass(item.name, item.docstring.value if item.docstring else "")
        for item in _classes(package(name))
        if base in {str(parent) for parent in item.bases}
    ]
    return sorted(found, key=lambda item: item.name)


def _classes(module: griffe.Module) -> Iterator[griffe.Class]:
    yield from (member for member in module.classes.values() if isinstance(member, griffe.Class))
    for inner in module.modules.values():
        if isinstance(inner, griffe.Module):
            yield from _classes(inner)
