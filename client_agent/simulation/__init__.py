"""Federated simulation: compare methods over the same silos, seeds and local steps.

Every simulated client enrols with a real coordinator over HTTP and runs `client_agent.rounds.steps`.

    from client_agent.simulation import Study, simulate

    report = simulate(Study.from_toml("study.toml"), methods=["local_lora", "fedmosaic"], seeds=[0, 1, 2])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from client_agent.simulation.compare import simulate as simulate
    from client_agent.simulation.report.summary import Report as Report
    from client_agent.simulation.study import Study as Study

_EXPORTS = {
    "Report": "client_agent.simulation.report.summary",
    "Study": "client_agent.simulation.study",
    "simulate": "client_agent.simulation.compare",
}


def __getattr__(name: str) -> object:
    """Import an exported name when it is first used."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
