"""The result of a client: one rule for federated clients and clients that trained alone."""

from __future__ import annotations

import pytest

from client_agent.storage.final_scores import FinalScores
from studies.outcomes import best_state, end_state, rules_of, state_by, states
from studies.results import CellResult, ClientResult
from studies.study_fields import States
from tests.scene.studies import result, scored

LOSSES = {"aster": (1.0, 0.5, 0.7)}


def client(run: CellResult) -> ClientResult:
    return run.clients[0]


def test_the_end_state_is_final_or_last_trained() -> None:
    federated = client(result("fedavg", 0, LOSSES, final={"aster": 0.6}))
    alone = client(result("local", 0, LOSSES))
    assert (end_state(federated).stage, end_state(federated).scores) == ("final", scored(0.6))
    assert (end_state(alone).stage, end_state(alone).scores) == ("trained", scored(0.7))


def test_the_best_state_has_the_least_validation_loss() -> None:
    federated = client(result("fedavg", 0, LOSSES, final={"aster": 0.6}, validated=True))
    best = best_state(federated)
    assert best is not None
    assert (best.round, best.stage) == (1, "trained")
    final = FinalScores(scores=scored(9.0), validation_loss=0.4)
    best = best_state(federated.model_copy(update={"final": final}))
    assert best is not None
    assert (best.stage, best.scores) == ("final", scored(9.0))
    assert state_by("end", federated).stage == "final"


@pytest.mark.parametrize(
    ("counted", "stages", "best", "end"),
    [
        ("all", ["served", "trained", "served", "trained", "final"], 0.5, 0.6),
        ("served", ["served", "served", "final"], 0.5, 0.6),
        ("trained", ["served", "trained", "trained"], 0.5, 0.7),
    ],
)
def test_counted_states_begin_with_the_bare_model(
    counted: States, stages: list[str], best: float, end: float
) -> None:
    federated = client(result("fedavg", 0, LOSSES, final={"aster": 0.6}, validated=True))
    federated = federated.model_copy(update={"states": counted})
    assert [state.stage for state in states(federated)] == stages
    assert state_by("best", federated).scores == scored(best)
    assert state_by("end", federated).scores == scored(end)


def test_the_earlier_of_equal_states_is_the_best() -> None:
    alone = client(result("local", 0, {"aster": (1.0, 0.5, 0.5)}, validated=True))
    best = best_state(alone)
    assert best is not None
    assert (best.round, best.stage) == (1, "trained")  # round 2 was served the same
    assert [state.stage for state in states(alone)] == ["served", "trained"] * 2


def test_the_rule_best_needs_validation_in_all_runs() -> None:
    run = result("local", 0, LOSSES, validated=True)
    unknown = result("fedavg", 0, LOSSES, final={"aster": 0.6})
    assert rules_of([run]) == ["best", "end"]
    assert rules_of([run, unknown]) == ["end"]
    assert best_state(client(unknown)) is None
