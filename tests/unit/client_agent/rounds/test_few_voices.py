"""Silos that demand more voices than a plan has: they send nothing and report the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_agent.cli.agent import agent
from client_agent.privacy.budget import TooFewVoices
from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import take_part
from client_agent.storage.round_folder import WEIGHTS
from schemas.messages.federations import FederationPlan
from schemas.peers import member_claims
from tests.scene.agents import alone_plan, checked, next_brief
from tests.scene.coordinator import Served
from tests.scene.silo_config import config


@pytest.mark.parametrize(
    ("plan", "silo_minimum", "joins"), [(1, 1, True), (1, 2, False), (2, 2, True), (3, 2, True)]
)
def test_round_is_joined_only_with_enough_voices(
    served: Served, started: Callable[..., Participant], plan: int, silo_minimum: int, joins: bool
) -> None:
    participant = started(**alone_plan(privacy={"min_voices": plan}))
    federation_id = participant.session.federation_id
    participant.session.min_voices = silo_minimum
    brief = next_brief(participant)
    if joins:
        assert take_part(participant, brief)
        return
    with pytest.raises(TooFewVoices, match=r"privacy\.min_voices is 1, and this silo's min_voices is 2"):
        take_part(participant, brief)
    assert not participant.workspace.rounds.open(1).has(WEIGHTS)
    assert served.admin.get(f"/v1/federations/{federation_id}/rounds/1").json()["counts"]["joined"] == 0


def test_check_reports_voices_and_what_members_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, plan = config(tmp_path), tmp_path / "plan.json"
    monkeypatch.setenv("TESSERA_AGENT_MIN_VOICES", "2")
    unknown = checked(file)["other members"]
    assert unknown.passed
    assert "min_voices 2 limits the federation's plan, which is not known yet" in unknown.detail
    for least, good in ((1, False), (2, True)):
        document = {"name": "x", "strategy": {"name": "fedmosaic"}, "privacy": {"min_voices": least}}
        plan.write_text(json.dumps(document))
        finding = checked(file, plan)["other members"]
        assert finding.passed is good
        words = " ".join(member_claims(FederationPlan.model_validate(document)))
        assert (words in finding.detail) is good


@pytest.mark.parametrize(
    ("masking", "sees"),
    [("pairwise", "sees only sums over at least 5 members"), ("none", "the coordinator sees every update")],
)
def test_check_reports_what_coordinator_sees_of_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masking: str, sees: str
) -> None:
    file, plan = config(tmp_path), tmp_path / "plan.json"
    monkeypatch.setenv("TESSERA_AGENT_MAX_EPSILON", "2")  # no sketch is sent, so none can cost more
    monkeypatch.setenv("TESSERA_AGENT_MIN_VOICES", "5")
    summed = {"masking": masking, "minimum": 5}
    document = {"name": "x", "strategy": {"name": "fedavg"}, "adapter": {"kind": "lora"}}
    plan.write_text(json.dumps(document | {"privacy": {"secure_sum": summed}}))
    details = checked(file, plan)
    assert details["privacy"].passed, details["privacy"]
    assert sees in details["privacy"].detail
    assert "No gradient sketches" in details["privacy"].detail
    assert not details["other members"].passed
    assert "privacy.secure_sum.minimum of 6 or more" in details["other members"].detail


@pytest.mark.parametrize(("silo", "exit_code"), [(1, 0), (2, 1)])
def test_enrol_prints_what_other_members_see(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silo: int, exit_code: int
) -> None:
    federation_id = served.federation(**alone_plan())
    monkeypatch.setenv("TESSERA_AGENT_URL", served.url)
    monkeypatch.setenv("TESSERA_AGENT_MIN_VOICES", str(silo))
    arguments = ["enrol", "--name", "a", "--token", served.enrolment_token(federation_id, "a")]
    done = CliRunner().invoke(agent, [*arguments, "--config", str(config(tmp_path))])
    assert done.exit_code == exit_code, done.output
    plan = FederationPlan.model_validate(served.admin.get(f"/v1/federations/{federation_id}").json()["plan"])
    assert all(sentence in done.output for sentence in member_claims(plan))
