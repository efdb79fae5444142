"""Exports of a package that are imported at their first use, so that importing the package is cheap."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_exports(
    package: str, exports: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        package: its `__name__`.
        exports: exported name -> the module that defines it.
    """

    def get_attribute(name: str) -> object:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(exports[name]), name)

    def list_names() -> list[str]:
        return sorted([*vars(sys.modules[package]), *exports])

    return get_attribute, list_names
