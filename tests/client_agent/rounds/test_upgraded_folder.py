"""An agent's folder of an earlier version: it goes on in the middle of a federation and after its end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from client_agent.daemon import run
from client_agent.errors import RoundUnreadable, Stopped
from client_agent.rounds.checkpoints import Variant, adapter_of_round
from client_agent.rounds.opened_brief import OpenedBrief
from client_agent.rounds.participant import Participant
from client_agent.rounds.trained import Trained
from client_agent.storage.final_scores import read_final_scores
from client_agent.storage.round_files import parse_scores, read_brief, sent_scores
from client_agent.storage.round_folder import BRIEF, FINAL_SCORES, SCORES_SENT, TRAINED
from client_agent.training.evaluate import evaluate
from schemas.messages.scores import LOSS
from tests.client_agent.rounds.old_folders import age
from tests.client_agent.test_daemon import alone_plan, naps
from tests.client_agent.test_status import beside, status
from tests.coordinator.db.test_score_migration import NEW, OLD
from tests.served import Served

Enrolled = Callable[..., Participant]


class Failing(httpx.HTTPTransport):
    """Stops the agent at the first request whose path and body match, while `on`."""

    def __init__(self, path: str, part: bytes = b"") -> None:
        super().__init__()
        self._path, self._part, self.on = path, part, True

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.on and request.url.path.endswith(self._path) and self._part in request.read():
            raise Stopped
        return super().handle_request(request)


def stopped(started: Enrolled, line: Failing) -> tuple[Participant, str]:
    who = started(line, **alone_plan())
    with pytest.raises(Stopped):
        run(who, naps(500))
    age(who.workspace.home)
    line.on = False
    return who, who.session.federation_id


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/rounds/2/update", "/rounds/2/weights"], ids=["trained", "between rounds"])
def test_a_federation_goes_on_after_an_upgrade(
    served: Served, started: Enrolled, tmp_path: Path, path: str
) -> None:
    who, federation_id = stopped(started, Failing(path))
    first = who.workspace.rounds.open(1)
    assert read_brief(first).total_rounds == 2
    shown = status(beside(tmp_path, url=served.url), exit_code=1)["rounds"][-1]
    scores = served.rounds(federation_id)[0]["clients"][0]["scores"]
    assert shown["trained"] == scores["trained"]["loss"]["value"]
    assert (shown["personal"], shown["learning_rate"]) == ("trained", 0.01)
    run(who, naps(500))
    assert [r["state"] for r in served.rounds(federation_id)] == ["published"] * 2
    assert served.rounds(federation_id)[1]["clients"][0]["scores"]["final"] is not None


@pytest.mark.slow
def test_a_finished_federation_is_scored_and_read_after_an_upgrade(
    served: Served, started: Enrolled, tmp_path: Path
) -> None:
    who, _ = stopped(started, Failing("/scores", b'"final":{'))
    home, silo = who.workspace.home, who.trainer.silo
    trained = Trained.read(who.workspace.rounds.open(2).path / TRAINED)
    assert (trained.scores.kept, trained.validation, trained.start) == ("trained", {}, {})
    assert math.isnan(trained.learning_rate)
    expected: tuple[tuple[Variant, float, float], ...] = (
        ("served", trained.scores.served[LOSS].value, 0.05),  # the download, not the start that was scored
        ("kept", trained.scores.trained[LOSS].value, 1e-5),
    )
    for variant, loss, tolerance in expected:
        with adapter_of_round(silo, home, 2, variant):
            scored = evaluate(silo.base, silo.data.test, max_length=64).loss
        assert scored == pytest.approx(loss, abs=tolerance)
    (home / FINAL_SCORES).unlink()
    run(who, naps(500))
    assert read_final_scores(home) is not None
    assert status(beside(tmp_path, url=served.url), exit_code=0)["final_scores"] is not None


def test_old_scores_are_read_as_the_coordinator_migrates_them() -> None:
    assert parse_scores(json.dumps(OLD)).model_dump() == NEW


def test_files_that_cannot_be_read_are_absent_or_name_what_to_do(started: Enrolled) -> None:
    who, _ = stopped(started, Failing("/rounds/2/weights"))
    first = who.workspace.rounds.open(1)
    for damaged in (b"", b"[]", b'{"before": 3}'):
        first.write(SCORES_SENT, damaged)
        first.write(BRIEF, damaged)
        assert sent_scores(first) is None
        with pytest.raises(RoundUnreadable, match=r"brief\.json cannot be read.* move "):
            OpenedBrief.read(first)
