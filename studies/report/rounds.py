"""The records of each round: losses of single clients, relevance, bytes; and errors of alignment. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.messages.base import Strict
from studies.report.curves import LossCurve, trained_curve
from studies.report.runs import mean
from studies.results import CellResult
from studies.run_records import AlignmentRecord, RelevanceRecord, TextCount


class RelevanceSummary(Strict):
    """The relevance of a method's first seed that has one, by round."""

    seed: int
    rounds: list[RelevanceRecord]


class RoundBytes(Strict):
    """Encoded bytes of a client on average, by round."""

    up: list[float]
    down: list[float]


class AlignmentSummary(Strict):
    """The packs of a method, and the largest error with which its plan shares a module."""

    max_error: float
    packs: list[AlignmentRecord]


def client_curves(results: Sequence[CellResult], steps: int) -> dict[str, LossCurve]:
    """Return each client's loss before its first local step and after those of each of its rounds."""
    names = [client.name for client in results[0].clients]
    return {name: trained_curve(results, [name], steps) for name in names}


def relevance_of(results: Sequence[CellResult]) -> RelevanceSummary | None:
    """Return the relevance of the first run that has one."""
    for result in results:
        if result.relevance:
            # One seed only: a mean of several would hide who listens to whom.
            return RelevanceSummary(seed=result.seed, rounds=result.relevance)
    return None


def bytes_of(results: Sequence[CellResult]) -> RoundBytes:
    """Return the mean bytes by round over the clients of the round and over seeds."""
    total = results[0].plan.rounds.total
    by_round = [
        [entry for r in results for c in r.clients for entry in c.rounds if entry.round == number]
        for number in range(1, total + 1)
    ]
    return RoundBytes(
        up=[mean([entry.bytes_up for entry in entries]) for entries in by_round],
        down=[mean([entry.bytes_down for entry in entries]) for entries in by_round],
    )


def packs_of(results: Sequence[CellResult]) -> AlignmentSummary | None:
    """Return the packs that a method was aligned by; None without packs."""
    # Packs depend on models and anchors and not on the run's seed: those of one result stand for all.
    plan, packs = results[0].plan.alignment, results[0].alignment
    if plan is None or not packs:
        return None
    return AlignmentSummary(max_error=plan.max_error, packs=packs)


def texts_of(results: Sequence[CellResult]) -> dict[str, TextCount]:
    """Return the number of cut texts of each client with some; the largest count of all runs."""
    counts: dict[str, TextCount] = {}
    for client in (client for result in results for client in result.clients):
        if client.texts is not None and client.texts.cut:
            counts[client.name] = max(
                counts.get(client.name, client.texts), client.texts, key=lambda t: t.cut
            )
    return counts
