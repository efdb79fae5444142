"""Find strategies that are installed as packages of their own, by entry points of `tessera.strategies`.

An entry point's name is the strategy's; its value is a package with the modules `coordinator` and `agent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

GROUP = "tessera.strategies"


class AmbiguousStrategy(Exception):
    """Two packages define a strategy of the same name; the message names both."""


@cache  # packages are not installed into a running process
def strategy_packages() -> Mapping[str, str]:
    """Return the package of each installed strategy, by the strategy's name.

    Raises:
        AmbiguousStrategy: two packages define the same name; uninstall one of them.
    """
    packages: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        earlier = packages.setdefault(entry.name, entry)
        if earlier.value != entry.value:
            raise AmbiguousStrategy(
                f"strategy {entry.name!r} is defined by {_label(earlier)} and {_label(entry)}: uninstall one"
            )
    return {name: entry.value for name, entry in packages.items()}


def _label(entry: EntryPoint) -> str:
    return f"{entry.value} ({entry.dist.name if entry.dist else 'unknown distribution'})"
