"""Strategies by name: those of Tessera, and those of installed packages, found by entry points.

An entry point of `tessera.strategies` has the name of a strategy; its value is a package with the modules
`options`, `coordinator` and `agent`. A strategy of Tessera is preferred to a package of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Final, Literal

from schemas.strategies.averages import (
    DittoOptions,
    FedAvgOptions,
    FedProxOptions,
    FedSaLoraOptions,
    FfaLoraOptions,
)
from schemas.strategies.ca_pfl import CaPflOptions
from schemas.strategies.declaration import StrategyOptions
from schemas.strategies.fed_vemoe import FedVemoeOptions
from schemas.strategies.fedmosaic import FedMosaicOptions
from schemas.strategies.lora_factors import (
    FedExLoraOptions,
    FloraOptions,
    HetLoraOptions,
    LoraFairOptions,
)

GROUP = "tessera.strategies"

OWN_STRATEGIES: Final[Mapping[str, type[StrategyOptions]]] = {
    "ca_pfl": CaPflOptions,
    "ditto": DittoOptions,
    "fed_vemoe": FedVemoeOptions,
    "fedavg": FedAvgOptions,
    "fedex_lora": FedExLoraOptions,
    "fedmosaic": FedMosaicOptions,
    "fedprox": FedProxOptions,
    "fedsa_lora": FedSaLoraOptions,
    "ffa_lora": FfaLoraOptions,
    "flora": FloraOptions,
    "het_lora": HetLoraOptions,
    "lora_fair": LoraFairOptions,
}
"""The strategies of Tessera: each side has a file of the name, with `Strategy`, made from the options."""


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


@cache
def strategy_names() -> tuple[str, ...]:
    """Return the names of all strategies, sorted: those of Tessera, and those of installed packages."""
    return tuple(sorted({*OWN_STRATEGIES, *strategy_packages()}))


def strategy_options(name: str) -> type[StrategyOptions]:
    """Return the options of a strategy.

    Raises:
        StrategyPackageBroken: its package has none that can be used.
        KeyError: there is no strategy of this name.
    """
    if name in OWN_STRATEGIES:
        return OWN_STRATEGIES[name]
    module = _package_module(name, "options")
    options = module.Options
    if not (isinstance(options, type) and issubclass(options, StrategyOptions)):
        raise StrategyPackageBroken(
            f"strategy {name!r}: Options of {module.__name__} is no subclass of "
            f"{StrategyOptions.__module__}.StrategyOptions"
        )
    return options


def load_half(name: str, side: Literal["coordinator", "agent"], *, package: str) -> ModuleType:
    """Import the module with the class `Strategy` of one side; `package` has those of Tessera.

    Raises:
        StrategyPackageBroken: two packages define it, or its module cannot be imported or is incomplete.
        KeyError: there is no strategy of this name.
    """
    return import_module(f"{package}.{name}") if name in OWN_STRATEGIES else _package_module(name, side)


def _package_module(name: str, module: Literal["options", "coordinator", "agent"]) -> ModuleType:
    entries = strategy_packages()[name]
    if len(entries) > 1:
        packages = " and ".join(map(_label, entries))
        raise StrategyPackageBroken(f"strategy {name!r} is defined by {packages}: uninstall one")
    path = f"{entries[0].value}.{module}"
    try:
        imported = import_module(path)
    except Exception as error:  # code of another package may raise any error
        raise StrategyPackageBroken(
            f"strategy {name!r}: {path} cannot be imported ({error}); repair or reinstall the package"
        ) from error
    needed = "Options" if module == "options" else "Strategy"
    if needed not in vars(imported):
        raise StrategyPackageBroken(f"strategy {name!r}: {path} does not define {needed}")
    return imported


def _label(entry: EntryPoint) -> str:
    return f"{entry.value} ({entry.dist.name if entry.dist else 'unknown distribution'})"
