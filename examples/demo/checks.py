"""Check that a run of the demo is complete, whatever its figures."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, isfinite

from examples.agents import DemoFailed
from examples.demo.report import Report


def require_whole(report: Report) -> None:
    """Check that every cell has a figure, training changed every silo, and every side answered.

    Raises:
        DemoFailed: something is missing.
    """
    faults = list(_faults(report))
    if faults:
        raise DemoFailed(
            f"{'; '.join(faults)}: see federated/*/agent.log in its folder, and please report this"
        )


def _faults(report: Report) -> Iterator[str]:
    tickets = report.plan.scores.examples
    for silo in report.silos:
        name, bare = silo.silo.name, silo.by_side["bare"]
        for side, figures in silo.by_side.items():
            if not isfinite(figures.loss) or figures.tickets != tickets:
                yield f"{name}: the {side} side has no score on {tickets} tickets"
            if side != "bare" and figures.loss == bare.loss:
                yield f"{name}: the {side} side has the loss of the bare model, so nothing was trained"
    for listener, weights in zip(report.federation.silos, report.federation.relevance, strict=True):
        if not isclose(sum(weights), 1.0, abs_tol=1e-3):
            yield f"{listener}: its weights of the silos add up to {sum(weights):.3f} instead of 1"
    if not (report.federation.bytes_up and report.federation.bytes_down):
        yield "no bytes were sent"
    for side in report.sides:
        if not report.answers.by_side.get(side):
            yield f"{report.answers.silo}: the {side} side wrote no answer"
