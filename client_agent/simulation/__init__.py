"""Federated simulation: compare methods over the same silos, seeds and local steps.

Every simulated client enrols with a real coordinator over HTTP and runs `client_agent.rounds.steps`.

    from client_agent.simulation import Study, simulate

    report = simulate(Study.from_toml("study.toml"), methods=["local_lora", "fedmosaic"], seeds=[0, 1, 2])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from client_agent.simulation.compare import simulate as simulate
    from client_agent.simulation.report.summary import Report as Report
    from client_agent.simulation.study import Study as Study

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Report": "client_agent.simulation.report.summary",
        "Study": "client_agent.simulation.study",
        "simulate": "client_agent.simulation.compare",
    },
)
