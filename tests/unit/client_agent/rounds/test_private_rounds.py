"""Rounds under differential privacy of sketches: cost, releases, and recovery from crashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.daemon import run
from client_agent.errors import ManifestRefused
from client_agent.privacy.budget import BudgetSpent, NotPrivateEnough, TooFewRecords
from client_agent.privacy.ledger import Ledger
from client_agent.rounds import plain_steps, sketch
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.participant import Participant
from client_agent.rounds.sketch import join_body, mechanism_for, update_sketch
from client_agent.rounds.steps import take_part
from client_agent.rounds.work import Work
from client_agent.sketches.gradient import Sketch
from client_agent.storage.round_folder import SKETCH, WEIGHTS
from schemas.messages.federations import FederationPlan, SignatureDpPlan, SignaturePlan
from schemas.messages.rounds import RoundBrief
from tests.scene.agents import DP, Enrolled, alone_plan, checked, limited_sleep, next_brief, run_until_killed
from tests.scene.coordinator import Served
from tests.scene.faults import Killed
from tests.scene.plans import federation_plan
from tests.scene.silo_config import config


def sketch_of(participant: Participant, brief: RoundBrief) -> Sketch:
    ledger = Ledger(participant.workspace.folder)
    return update_sketch(participant.session, participant.trainer, ledger, OpenedBrief.of(brief), None)


def private(started: Enrolled, **rounds_plan: int) -> Participant:
    plan = alone_plan(signature={"dp": DP}, rounds={"total": 3, "min_clients": 1} | rounds_plan)
    return started(**plan)


def stored_sketch(participant: Participant, number: int) -> Sketch:
    return Sketch.from_bytes(participant.workspace.rounds.open(number).read(SKETCH))


@pytest.mark.slow
def test_silo_releases_sketch_once_a_round_then_repeats(served: Served, started: Enrolled) -> None:
    participant = private(started)
    run(participant, limited_sleep(500))
    book = Ledger(participant.workspace.folder).read()
    assert [entry.round for entry in book.releases] == [1, 2]
    spent = [entry.epsilon for entry in book.releases]
    assert 0 < spent[0] < spent[1] <= 2.0
    shown = served.rounds(participant.session.federation_id)
    assert [view["state"] for view in shown] == ["published"] * 3
    assert [view["clients"][0]["epsilon"] for view in shown] == [*spent, spent[1]]
    assert stored_sketch(participant, 2).to_bytes() == stored_sketch(participant, 3).to_bytes()
    assert stored_sketch(participant, 2).vector.shape == (64,)
    assert np.linalg.norm(stored_sketch(participant, 2).vector) <= 1 + 1e-6


@pytest.mark.slow
def test_crash_between_ledger_and_release_costs_budget(
    served: Served, started: Enrolled, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = private(started, total=2)
    run_until_killed(participant, monkeypatch, sketch, "release")
    assert not participant.workspace.rounds.open(1).has(SKETCH)
    (paid,) = Ledger(participant.workspace.folder).read().releases
    run_until_killed(
        participant, monkeypatch, plain_steps, "pack_update"
    )  # signed and kept, but not yet sent
    first, second = Ledger(participant.workspace.folder).read().releases
    assert (first, second.round) == (paid, 1)
    assert second.epsilon > first.epsilon
    signed = participant.workspace.rounds.open(1).read(SKETCH)
    run(participant, limited_sleep(500))
    assert participant.workspace.rounds.open(1).read(SKETCH) == signed
    assert len(Ledger(participant.workspace.folder).read().releases) == 2
    assert [view["clients"][0]["epsilon"] for view in served.rounds(participant.session.federation_id)] == [
        second.epsilon
    ] * 2


@pytest.mark.slow
def test_crash_without_release_left_is_explained(started: Enrolled, monkeypatch: pytest.MonkeyPatch) -> None:
    participant = private(started)
    brief = next_brief(participant)
    once = SignatureDpPlan(epsilon=2.0, releases=1, minimum_sample=12)
    brief = brief.model_copy(update={"signature": brief.signature.model_copy(update={"dp": once})})
    with monkeypatch.context() as patched:
        patched.setattr(sketch, "release", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            sketch_of(participant, brief)
    with pytest.raises(
        BudgetSpent, match=r"no sketch to send again: a crash lost it after .* releases of 2 or more"
    ):
        sketch_of(participant, brief)


@pytest.mark.slow
def test_newcomers_join_and_update_carry_one_release(started: Enrolled) -> None:
    participant = private(started)
    brief = next_brief(participant)
    work = Work(participant, OpenedBrief.of(brief), participant.workspace.rounds.open(1))
    bodies = {plain_steps.newcomer_body(work) for _ in range(2)}
    assert len(bodies) == 1
    assert len(Ledger(participant.workspace.folder).read().releases) == 1
    assert stored_sketch(participant, 1).vector.tobytes() in bodies.pop()


@pytest.mark.parametrize("dp", [None, SignatureDpPlan(epsilon=9.0, releases=2, minimum_sample=12)])
def test_newcomer_refuses_brief_less_private_than_its_plan(
    started: Enrolled, monkeypatch: pytest.MonkeyPatch, dp: SignatureDpPlan | None
) -> None:
    participant = private(started)
    brief = next_brief(participant)
    less = brief.signature.model_copy(update={"dp": dp})
    lying = brief.model_copy(update={"round": 2, "signature": less})
    sent: list[object] = []
    monkeypatch.setattr(type(participant.session.api), "join", lambda *_: sent.append(_))
    for _ in range(2):
        with pytest.raises(ManifestRefused, match="round 2 has another signature than the federation's"):
            take_part(participant, lying)
    assert sent == []
    assert Ledger(participant.workspace.folder).read().releases == ()
    assert not participant.workspace.rounds.open(2).has(SKETCH)


@pytest.mark.parametrize(
    ("dp", "error"),
    [
        (None, "asks for sketches without differential privacy, and this silo's max_epsilon is 1"),
        (
            SignatureDpPlan(epsilon=1.5),
            "allows sketches to cost epsilon 1.5, and this silo's max_epsilon is 1",
        ),
        (
            SignatureDpPlan(epsilon=1.0, delta=1e-4),
            "promises epsilon at delta 0.0001 only, and this silo's max_delta is 1e-05",
        ),
    ],
)
def test_silo_refuses_sketch_less_private_than_max_epsilon(
    started: Enrolled, dp: SignatureDpPlan | None, error: str
) -> None:
    participant = private(started)
    participant.session.max_epsilon = 1.0
    brief = next_brief(participant)
    changed = brief.model_copy(update={"signature": brief.signature.model_copy(update={"dp": dp})})
    with pytest.raises(NotPrivateEnough, match=error):
        sketch_of(participant, changed)
    with pytest.raises(NotPrivateEnough, match=error):
        join_body(participant.session, participant.trainer, OpenedBrief.of(changed), None)
    with pytest.raises(NotPrivateEnough, match="or raise max_epsilon here"):
        take_part(participant, brief)  # before anything is trained
    assert not any(participant.workspace.rounds.open(1).has(name) for name in (WEIGHTS, SKETCH))
    assert Ledger(participant.workspace.folder).read().releases == ()
    participant.session.max_epsilon = 2.0
    sketch_of(participant, brief)
    assert len(Ledger(participant.workspace.folder).read().releases) == 1


def test_check_compares_plan_with_max_epsilon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"name": "x", "strategy": {"name": "fedmosaic"}, "signature": {"dp": DP}}
    file, plan_file = config(tmp_path), tmp_path / "plan.json"
    monkeypatch.setenv("TESSERA_AGENT_MAX_EPSILON", "2")
    unknown = checked(file)["privacy"]
    assert unknown.passed
    assert "max_epsilon 2 limits the federation's plan, which is not known yet" in unknown.detail
    for most, good, detail in (
        ("2", True, "max_epsilon 2 is met"),
        ("1.9", False, "allows sketches to cost epsilon 2, and this silo's max_epsilon is 1.9"),
    ):
        monkeypatch.setenv("TESSERA_AGENT_MAX_EPSILON", most)
        plan_file.write_text(json.dumps(plan))
        finding = checked(file, plan_file)["privacy"]
        assert finding.passed is good
        assert detail in finding.detail
    plan_file.write_text(json.dumps(plan | {"signature": {}}))
    finding = checked(file, plan_file)["privacy"]
    assert not finding.passed
    assert "asks for sketches without differential privacy" in finding.detail


def test_newcomer_without_budget_gets_a_remedy(started: Enrolled) -> None:
    participant = private(started)
    brief = next_brief(participant)
    for number in (1, 2):
        sketch_of(participant, brief.model_copy(update={"round": number}))
    with pytest.raises(BudgetSpent, match=r"a larger signature\.dp\.epsilon"):
        sketch_of(participant, brief.model_copy(update={"round": 3}))


def test_too_small_or_too_large_silos_are_refused(participant: Enrolled, silo: Any) -> None:
    dp = SignatureDpPlan(epsilon=2.0, releases=2)
    with pytest.raises(TooFewRecords, match=r"12 different training examples are too few.*draws at least 32"):
        mechanism_for(silo.data.train, SignaturePlan(dp=dp), dp)
    loose = SignatureDpPlan(epsilon=2.0, releases=2, minimum_sample=12, delta=1e-2)
    many = [example.__class__(f"{i}{example.prompt}", "a") for i in range(9) for example in silo.data.train]
    with pytest.raises(TooFewRecords, match=r"delta 0\.01 is too large for 108 records"):
        mechanism_for(many, SignaturePlan(dp=loose), loose)


def test_check_reports_promised_and_spent_sketch_privacy(tmp_path: Path) -> None:
    plan = {"name": "x", "strategy": {"name": "fedmosaic"}, "signature": {"dp": DP}}
    file, plan_file = config(tmp_path), tmp_path / "plan.json"
    plan_file.write_text(json.dumps(plan))
    finding = checked(file, plan_file)["privacy"]
    assert finding.passed
    assert "record-level (2, 1e-05)-differential privacy" in finding.detail
    assert "epsilon 0 of 2 spent at delta 1e-05; 2 of 2 left" in finding.detail
    plan_file.write_text(json.dumps(plan | {"signature": {"dp": {"epsilon": 2}}}))
    refused = checked(file, plan_file)["privacy"]
    assert not refused.passed
    assert "too few" in refused.detail


def test_signature_plan_defaults_are_resolved_and_validated() -> None:
    plan = federation_plan("fedmosaic", rounds={"total": 7}, signature={"dp": {"epsilon": 3}})
    assert (plan.signature.dim, plan.signature.probe_examples) == (64, 256)
    assert plan.signature.dp is not None
    assert plan.signature.dp.releases == 7
    assert FederationPlan.model_validate_json(plan.model_dump_json()) == plan
    with pytest.raises(ValueError, match="probe_examples"):
        SignaturePlan(dp=SignatureDpPlan(epsilon=1), probe_examples=31)
