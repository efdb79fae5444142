"""Rounds of private training over HTTP: cost, claims, refusals and progress."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from client_agent.daemon import run
from client_agent.policy import Policy, PolicyRefused
from client_agent.privacy.accountant import epsilon_of_counted
from client_agent.privacy.budget import TrainingBudgetSpent
from client_agent.privacy.ledger import Ledger
from client_agent.rounds import plain_steps
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.participant import Participant
from client_agent.rounds.private_training import NotPrivatelyTrained, require_private_steps
from client_agent.rounds.progress_report import step_reports
from client_agent.rounds.steps import take_part
from client_agent.rounds.strategy import load_strategy
from client_agent.rounds.training_result import TrainingResult
from client_agent.rounds.work import Work
from client_agent.storage.round_folder import TRAINED, WEIGHTS
from client_agent.training import loop
from client_agent.training.silo import Silo
from client_agent.training.trainers import OpenedTrainer
from schemas.messages.federations import FederationPlan
from tests.scene.agents import (
    DP,
    QUICK,
    Enrolled,
    alone_plan,
    checked,
    limited_sleep,
    next_brief,
    run_until_killed,
)
from tests.scene.coordinator import Served
from tests.scene.faults import Killed
from tests.scene.silo_config import config

LORA = {"kind": "lora", "rank": 2, "roles": ["v"]}
PRIVATE = {"epsilon": 4.0}


def private_plan(**changes: Any) -> dict[str, Any]:
    privacy = {"training": PRIVATE} | changes.pop("privacy", {})
    plan = {"adapter": LORA, "strategy": {"name": "fedavg"}, "signature": {"dp": DP}, "privacy": privacy}
    return alone_plan(**plan | changes)


@pytest.mark.slow
def test_private_rounds_record_and_report_epsilon(served: Served, started: Enrolled) -> None:
    participant = started(**private_plan())
    run(participant, limited_sleep(500))
    views = served.rounds(participant.session.federation_id)
    assert [view["state"] for view in views] == ["published"] * 2
    book = Ledger(participant.workspace.folder).read()
    assert [(entry.round, entry.steps, entry.begun) for entry in book.training] == [(1, 2, 2), (2, 2, 2)]
    assert [entry.round for entry in book.releases] == [1, 2]
    mechanism = book.training[-1].mechanism
    assert (mechanism.sampled, mechanism.records) == (8, 12)
    assert book.training[-1].epsilon == epsilon_of_counted([(mechanism, 4)], 1e-5)
    assert 0 < book.training[0].epsilon < book.training[1].epsilon < 4.0  # a round's steps are in reserve
    assert book.together(1e-5) < book.training[-1].epsilon + book.releases[-1].epsilon
    spent = [view["clients"][0]["training_epsilon"] for view in views]
    assert spent == [entry.epsilon for entry in book.training]
    (member,) = served.admin.get(f"/v1/federations/{participant.session.federation_id}/report").json()[
        "members"
    ]
    assert float(member["training_epsilon"]) == spent[-1]
    claims = " ".join(views[0]["claims"])
    assert "Updates: record-level (4, 1e-05)-differential privacy against everybody" in claims
    assert "updates and sketches together: (6, 2e-05)" in claims
    assert "adapters, with which the coordinator is trusted" not in claims
    assert views[0]["clients"][0]["progress"] is None


@pytest.mark.slow
def test_batched_gradients_train_at_the_same_cost(
    served: Served, started: Enrolled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(*_: Any) -> float:
        raise AssertionError("a gradient was computed by itself")

    monkeypatch.setattr(loop, "_gradient_of_text", alone)
    participant = started(**private_plan(privacy={"training": PRIVATE | {"gradients": "batched"}}))
    before = participant.trainer.silo.base.model.state_dict()
    run(participant, limited_sleep(500))
    views = served.rounds(participant.session.federation_id)
    assert [view["state"] for view in views] == ["published"] * 2
    book = Ledger(participant.workspace.folder).read()
    mechanism = book.training[-1].mechanism
    assert [(entry.steps, entry.begun) for entry in book.training] == [(2, 2), (2, 2)]
    assert book.training[-1].epsilon == epsilon_of_counted([(mechanism, 4)], 1e-5)
    adapter = TrainingResult.from_bytes(participant.workspace.rounds.open(2).read(TRAINED)).adapter
    assert all(np.isfinite(values).all() and values.any() for values in adapter.values())
    assert all(
        torch.equal(before[name], now)
        for name, now in participant.trainer.silo.base.model.state_dict().items()
    )
    assert "bits of an example's gradient, which its agent tests" in " ".join(views[0]["claims"])


@pytest.mark.slow
def test_kill_between_steps_pays_for_lost_steps_again(
    started: Enrolled, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = started(
        **private_plan(rounds={"total": 1, "min_clients": 1}, training=QUICK | {"steps": 3})
    )
    calls: list[int] = []
    whole = loop._gradient_of_text

    def dies_in_the_third_step(*arguments: Any) -> float:
        if Ledger(participant.workspace.folder).read().training[-1].begun == 3:
            raise Killed
        calls.append(1)
        return whole(*arguments)

    run_until_killed_by(participant, monkeypatch, dies_in_the_third_step)
    (entry,) = Ledger(participant.workspace.folder).read().training
    assert (entry.steps, entry.begun) == (3, 3)
    run(participant, limited_sleep(500))
    book = Ledger(participant.workspace.folder).read()
    assert [(entry.steps, entry.begun) for entry in book.training] == [(3, 3), (3, 3)]
    assert book.training[-1].epsilon <= 4.0


def run_until_killed_by(participant: Participant, monkeypatch: pytest.MonkeyPatch, gradient: Any) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(loop, "_gradient_of_text", gradient)
        with pytest.raises(Killed):
            run(participant, limited_sleep(500))


@pytest.mark.slow
def test_kill_after_training_sends_same_update_without_cost(
    started: Enrolled, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = started(**private_plan(rounds={"total": 1, "min_clients": 1}))
    run_until_killed(participant, monkeypatch, plain_steps, "pack_update")
    trained = participant.workspace.rounds.open(1).read(TRAINED)
    run(participant, limited_sleep(500))
    assert participant.workspace.rounds.open(1).read(TRAINED) == trained
    assert [entry.steps for entry in Ledger(participant.workspace.folder).read().training] == [2]
    assert all(np.isfinite(values).all() for values in TrainingResult.from_bytes(trained).adapter.values())


@pytest.mark.slow
def test_held_out_examples_are_not_trained_on_privately(started: Enrolled) -> None:
    participant = started(**private_plan(signature={"dp": DP | {"minimum_sample": 8}}))
    silo = participant.trainer.silo
    first, second, *_ = silo.data.train
    twin = replace(second, prompt=f" {second.prompt.upper()}", completion="another")
    participant.trainer.silo = replace(silo, data=replace(silo.data, test=(*silo.data.test, first, twin)))
    assert take_part(participant, next_brief(participant))
    assert {first, second}.isdisjoint(participant.trainer.silo.data.train)
    book = Ledger(participant.workspace.folder).read()
    assert {entry.records for entry in (*book.training, *book.releases)} == {10}  # of twelve
    assert len(silo.data.train) == 12  # other participants of the same silo have all


@pytest.mark.slow
def test_silo_with_spent_training_budget_does_not_join(started: Enrolled) -> None:
    participant = started(**private_plan(privacy={"training": {"epsilon": 4.0, "steps": 3}}))
    with pytest.raises(
        TrainingBudgetSpent, match=r"the privacy budget of training is spent.*nothing is trained"
    ):
        run(participant, limited_sleep(500))
    assert not participant.workspace.rounds.open(2).has(WEIGHTS)
    assert [entry.round for entry in Ledger(participant.workspace.folder).read().training] == [1]


@pytest.mark.parametrize(
    ("training", "refusal"),
    [
        (
            None,
            "trains without differential privacy, and this silo's policy.max_training_epsilon is 3; nothing",
        ),
        (PRIVATE, "allows training to cost epsilon 4, .* privacy.training.epsilon of 3 or less, or change"),
    ],
)
def test_policy_refuses_costlier_plan_before_training(
    started: Enrolled, training: dict[str, float] | None, refusal: str
) -> None:
    participant = started(**private_plan(privacy={"training": training}))
    participant.session.policy = Policy(max_training_epsilon=3.0)
    with pytest.raises(PolicyRefused, match=refusal):
        take_part(participant, next_brief(participant))
    assert not participant.workspace.rounds.open(1).has(WEIGHTS)
    assert Ledger(participant.workspace.folder).read().training == ()
    participant.session.policy = Policy(max_training_epsilon=4.0)
    if training is not None:
        participant.session.check_plan()
        participant.session.policy = Policy(max_training_epsilon=4.0, max_training_delta=1e-6)
        with pytest.raises(PolicyRefused, match=r"at delta 1e-05 only.* privacy.training.delta of 1e-06 or"):
            participant.session.check_plan()


@pytest.mark.parametrize("name", ["fed_vemoe", "het_lora", "ca_pfl", "ditto"])
def test_method_that_reads_examples_outside_steps_is_refused(silo: Silo, name: str) -> None:
    with pytest.raises(NotPrivatelyTrained, match="nothing is trained or sent"):
        require_private_steps(silo, load_strategy(name, {}).parts)


def test_custom_trainer_or_ranks_are_refused(silo: Silo) -> None:
    parts = load_strategy("fedavg", {}).parts
    require_private_steps(silo, parts)
    trainer = OpenedTrainer("mine", cast(Any, None), cast(Any, None))
    with pytest.raises(NotPrivatelyTrained, match="trainer 'mine' adds no noise"):
        require_private_steps(replace(silo, trainer=trainer), parts)
    with pytest.raises(NotPrivatelyTrained, match="not divided among processes"):
        require_private_steps(replace(silo, ranks=cast(Any, object())), parts)


def test_private_training_sends_no_progress(started: Enrolled) -> None:
    participant = started(**private_plan())
    participant.trainer.reports_progress = True
    work = Work(participant, OpenedBrief.of(next_brief(participant)), participant.workspace.rounds.open(1))
    participant.session.check_plan()
    sent: list[object] = []
    object.__setattr__(participant.session.api, "put_once", lambda *_: sent.append(_))
    with step_reports(work) as report:
        report(loop.Step(1, 2, 1.5, 10, 1.0), 0, 2)
    assert sent == []


@pytest.mark.slow
def test_check_reports_privacy_cost_of_training(tmp_path: Path) -> None:
    file, plan_file = config(tmp_path), tmp_path / "plan.json"
    plan_file.write_text(json.dumps({"name": "x"} | private_plan()))
    finding = checked(file, plan_file)["privacy"]
    assert finding.passed, finding.detail
    assert "Training: updates: record-level (4, 1e-05)-differential privacy" in finding.detail
    assert "on 8 of 12 examples a step; epsilon 0 of 4 spent at delta 1e-05" in finding.detail
    plan_file.write_text(json.dumps({"name": "x"} | private_plan(strategy={"name": "het_lora"})))
    refused = checked(file, plan_file)["privacy"]
    assert not refused.passed
    assert "prunes ranks by a penalty of the loss" in refused.detail


def test_training_privacy_plan_is_resolved_and_validated() -> None:
    plan = FederationPlan.model_validate({"name": "x"} | private_plan(rounds={"total": 7, "min_clients": 1}))
    assert plan.privacy.training is not None
    assert plan.privacy.training.steps == 8 * 2
    assert FederationPlan.model_validate_json(plan.model_dump_json()) == plan
    with pytest.raises(ValueError, match=r"learning_rate[\s\S]*must be a number with privacy.training"):
        FederationPlan.model_validate({"name": "x"} | private_plan(training={}))
    with pytest.raises(ValueError, match=r"signature.dp[\s\S]*must be set with privacy.training"):
        FederationPlan.model_validate({"name": "x"} | private_plan(signature={}))
    with pytest.raises(ValueError, match=r"training.steps[\s\S]*must be 2 or more"):
        FederationPlan.model_validate(
            {"name": "x"} | private_plan(privacy={"training": {"epsilon": 1, "steps": 1}})
        )
    summed = private_plan(signature={}, privacy={"secure_sum": {}}, rounds={"min_clients": 5})
    assert FederationPlan.model_validate({"name": "x"} | summed).privacy.training is not None
