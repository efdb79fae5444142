"""Find strategies that are installed as packages of their own, by entry points of `tessera.strategies`.

An entry point's name is the strategy's; its value is a package with the modules `coordinator` and `agent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Literal

GROUP = "tessera.strategies"


class StrategyPackageBroken(Exception):
    """A package of a strategy cannot be used; the message says why and what to do."""


@cache  # packages are not installed into a running process
def strategy_packages() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the entry points of each installed strategy, by its name; more than one is an ambiguity."""
    packages: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=GROUP):
        earlier = packages.get(entry.name, ())
        # One package may be listed twice, as after an editable installation.
        if entry.value not in {package.value for package in earlier}:
            packages[entry.name] = (*earlier, entry)
    return packages


def load_strategy_package(name: str, side: Literal["coordinator", "agent"]) -> ModuleType:
    """Import one side of an installed strategy.

    Raises:
        StrategyPackageBroken: two packages define it, or its module cannot be imported or is incomplete.
        KeyError: no package defines it.
    """
    entries = strategy_packages()[name]
    if len(entries) > 1:
        packages = " and ".join(map(_label, entries))
        raise StrategyPackageBroken(f"strategy {name!r} is defined by {packages}: uninstall one")
    path = f"{entries[0].value}.{side}"
    try:
        module = import_module(path)
    except Exception as error:  # the code of somebody's package
        raise StrategyPackageBroken(
            f"strategy {name!r}: {path} cannot be imported ({error}); repair or reinstall the package"
        ) from error
    missing = {"Options", "Strategy"} - vars(module).keys()
    if missing:
        raise StrategyPackageBroken(f"strategy {name!r}: {path} does not define {', '.join(sorted(missing))}")
    return module


def _label(entry: EntryPoint) -> str:
    return f"{entry.value} ({entry.dist.name if entry.dist else 'unknown distribution'})"
