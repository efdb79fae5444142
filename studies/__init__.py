"""Studies: compare methods over the same silos, seeds and local steps.

Every client enrols with a real coordinator over HTTP and runs `client_agent.rounds.steps`.

    from studies import Study, simulate

    report = simulate(Study.from_toml("study.toml"), methods=["local_lora", "fedmosaic"], seeds=[0, 1, 2])
    print(report)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from studies.report.shown import Report as Report
    from studies.simulation import simulate as simulate
    from studies.study import Study as Study
    from studies.study_fields import StudySilo as StudySilo

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Report": "studies.report.shown",
        "Study": "studies.study",
        "StudySilo": "studies.study_fields",
        "simulate": "studies.simulation",
    },
)
