"""The result of a method for a client: its last state, or its best state. Pure.

The rule is the same for federated clients and for clients that trained alone. Validation losses choose the
best state, test scores are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from client_agent.storage.final_scores import TaskScores
from schemas.messages.scores import Score
from studies.results import CellResult, ClientResult

Rule = Literal["best", "end"]
_STAGES = ("served", "trained", "final")


@dataclass(frozen=True, slots=True)
class HeldState:
    """A model that a client had: its test scores, and its validation loss with enough validation examples.

    `tasks` has the test scores of each task, where the rows have tasks.
    """

    round: int
    stage: Literal["served", "trained", "final"]
    scores: dict[str, Score]
    validation: float | None
    tasks: TaskScores = field(default_factory=dict)


def states(client: ClientResult) -> list[HeldState]:
    """Return the states of a client that its method counts, in order: of each round, and the final one.

    The first one is the bare model, or what a latecomer is served, and always counts. Alone, a round begins
    with the trained state of the round before, so `served` adds only the bare model.
    """
    history: list[HeldState] = []
    for entry in client.rounds:
        scores, losses, tasks = entry.scores, entry.validation, entry.tasks
        served, trained = tasks.get("served", {}), tasks.get("trained", {})
        history.append(HeldState(entry.round, "served", scores.served, losses.get("served"), served))
        history.append(HeldState(entry.round, "trained", scores.trained, losses.get("trained"), trained))
    if (final := client.final) is not None:
        after = client.rounds[-1].round + 1
        history.append(HeldState(after, "final", final.scores, final.validation_loss, final.tasks))
    stages = {"all": _STAGES, "served": ("served", "final"), "trained": ("trained",)}[client.states]
    # The start always counts: a method may be worse than nothing.
    return [state for state in history if state is history[0] or state.stage in stages]


def end_state(client: ClientResult) -> HeldState:
    """Return the final published weights, or the last trained state if they do not count or are not there."""
    return states(client)[-1]


def best_state(client: ClientResult) -> HeldState | None:
    """Return the earliest state with the least validation loss; None if a state has none."""
    history = states(client)
    losses = [state.validation for state in history]
    measured = [loss for loss in losses if loss is not None]
    # One state without a loss makes the choice arbitrary. Of equal losses the earliest.
    return history[losses.index(min(measured))] if len(measured) == len(history) else None


def state_by(rule: Rule, client: ClientResult) -> HeldState:
    """Return a client's result by a rule; where there is no best state it is the end."""
    best = best_state(client) if rule == "best" else None
    return best if best is not None else end_state(client)


def rules_of(results: Sequence[CellResult]) -> list[Rule]:
    """Return the rules that apply to all clients, the one of the main tables first."""
    # The same rule for all methods and clients, or the comparison would favour some.
    comparable = all(best_state(client) is not None for result in results for client in result.clients)
    return ["best", "end"] if comparable else ["end"]
