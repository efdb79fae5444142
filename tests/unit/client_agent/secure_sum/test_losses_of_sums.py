"""Summed losses: no silo reports its own, and the coordinator accepts none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client_agent.errors import CoordinatorRefused
from client_agent.rounds.progress_report import ProgressReports
from client_agent.rounds.steps import take_part
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.round_folder import INPUT, TRAINED
from client_agent.training.loop import Step
from client_agent.training.silo import Silo
from schemas.messages.rounds import RoundBrief
from tests.scene.coordinator import Served
from tests.scene.waiting import wait_until
from tests.unit.client_agent.secure_sum.summed_agents import Agent, agents_of, plan
from tests.unit.client_agent.secure_sum.wires import Wire

PROGRESS = {"step": 1, "steps": 2, "tokens_per_second": 9.0, "seconds_left": 1.0}
NUMBERS = ("loss", "perplexity", "scores", "examples")


def _train(agent: Agent) -> None:
    """Join and train, up to the input of the sum."""
    session = agent.participant.session
    brief = session.api.current_round(session.federation_id)
    assert isinstance(brief, RoundBrief)
    agent.participant.trainer.reports_progress = True
    assert take_part(agent.participant, brief, until=INPUT)


def test_losses_are_neither_reported_nor_accepted(
    served: Served, silo: Silo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, report = Wire(), ProgressReports.__call__

    def report_and_wait(reports: ProgressReports, step: Step, done: int, total: int) -> None:
        """Wait until the first report has arrived: training as short as this would end before it."""
        report(reports, step, done, total)
        wait_until(lambda: bool(wire.of("PUT", "/progress")))

    monkeypatch.setattr(ProgressReports, "__call__", report_and_wait)
    with agents_of(served, silo, tmp_path, plan(3), 1, wire.transport) as agents:
        agents.start()
        (agent,) = agents.agents
        _train(agent)
        reports = [(json.loads(sent.sent), sent.status) for sent in wire.of("PUT", "/progress")]
        assert reports
        assert all(body["loss"] is None and body["step"] > 0 for body, _ in reports)
        assert {status for _, status in reports} == {204}
        sent = [e for e in wire.exchanges if e.method in ("PUT", "POST") and "/rounds/1/" in e.path]
        assert {e.path.rpartition("/")[2] for e in sent} == {"join", "progress"}
        for exchange in sent:
            body = json.loads(exchange.sent) if exchange.sent else {}
            assert all(body.get(name) is None for name in NUMBERS), exchange.path

        # What an agent with other habits would send.
        session, number = agent.participant.session, 1
        path = f"/v1/federations/{session.federation_id}/rounds/{number}/progress"
        scores = TrainingResult.from_bytes(agent.folder().read(TRAINED)).scores
        for slug, send in (
            ("validation", lambda: session.api.put_once(path, PROGRESS | {"loss": 1.5})),
            ("secure-sum-required", lambda: session.api.send_scores(session.federation_id, number, scores)),
            (
                "secure-sum-required",
                lambda: session.api.push_update(session.federation_id, number, b"an update with its losses"),
            ),
        ):
            with pytest.raises(CoordinatorRefused) as refusal:
                send()
            assert refusal.value.slug == slug
        (view,) = session.api.round_view(session.federation_id, number).clients
        assert view.scores is None
