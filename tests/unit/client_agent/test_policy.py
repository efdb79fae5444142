"""A silo's `[policy]`: plans and updates outside of it are refused before training or sending."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_agent.cli.alignment import _test_in_federation
from client_agent.cli.console import Bars
from client_agent.daemon import prepare, run
from client_agent.errors import SettingsUnusable
from client_agent.policy import Policy, PolicyRefused
from client_agent.rounds.client import require_policy, sent_kinds
from client_agent.rounds.opened_round import OpenedBrief
from client_agent.rounds.participant import Participant
from client_agent.rounds.progress_report import step_reports
from client_agent.rounds.steps import take_part
from client_agent.rounds.work import Work
from client_agent.settings import read_settings
from client_agent.storage.round_folder import RECEIPT, UPDATE, WEIGHTS
from schemas.messages.federations import FederationPlan
from schemas.wire.digests import digest_of
from tests.scene.agents import alone_plan, checked, limited_sleep, next_brief
from tests.scene.coordinator import Served
from tests.scene.plans import federation_plan
from tests.scene.silo_config import config

LORA = {"kind": "lora", "rank": 4, "roles": ["v", "down"]}
PQ = {"kind": "pq", "blocks": 2, "rank": 4, "roles": ["q", "v"]}


def plan(**fields: Any) -> FederationPlan:
    return federation_plan(**fields)


@pytest.mark.parametrize(
    ("rules", "adapter", "refusal"),
    [
        ({"strategies": ["fedavg", "flora"]}, LORA, None),
        ({"strategies": ["flora"]}, LORA, "strategy is fedavg, .* policy.strategies is flora; nothing is"),
        ({"modules": ["v", "down", "q"]}, LORA, None),
        ({"modules": ["v"]}, LORA, r"sends down, .* policy.modules is v; .* or change policy.modules"),
        ({"modules": ["b0.v"]}, LORA, "sends v, down"),
        ({"modules": ["v", "b0.q"]}, PQ, "sends b1.q"),
        ({"modules": ["v", "b0.q", "b1.q"]}, PQ, None),
        ({"modules": ["v", "b0.q", "b1.q"]}, PQ | {"same_architecture_rank": 2}, "sends q,"),
        ({"plan": digest_of(b"{}")}, LORA, None),
        ({"plan": digest_of(b"another")}, LORA, "digest is sha256:44136fa.* the plan that was examined"),
    ],
)
def test_plan_is_checked_against_all_policy_rules(
    rules: dict[str, Any], adapter: dict[str, Any], refusal: str | None
) -> None:
    policy = Policy.model_validate(rules)
    if refusal is None:
        policy.require_plan(plan(adapter=adapter), b"{}")
        return
    with pytest.raises(PolicyRefused, match=refusal):
        policy.require_plan(plan(adapter=adapter), b"{}")


SUMMED = {"minimum": 3}
BANK = {"strategy": {"name": "fed_vemoe"}, "adapter": LORA, "privacy": {"secure_sum": SUMMED}}
DISTIL = {"strategy": {"name": "fedmosaic", "options": {"distil": {}}}}
PIVOT = {"alignment": {"pivot": "tiny-s-3f0c9a1b2c3d"}, "strategy": {"name": "fedmosaic"}}


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({}, ("sketches", "scores")),
        (PIVOT, ("sketches", "scores", "alignment")),
        (DISTIL, ("sketches", "scores", "outputs")),
        ({"privacy": {"secure_sum": SUMMED}, "adapter": LORA}, ()),
        ({"privacy": {"secure_sum": SUMMED | {"scores": "own"}}, "adapter": LORA}, ("scores",)),
        ({"privacy": {"secure_sum": SUMMED | {"masking": "none"}}, "adapter": LORA}, ("scores",)),
        (BANK, ("counts",)),
    ],
)
def test_policy_must_permit_the_plans_data(fields: dict[str, Any], kinds: tuple[str, ...]) -> None:
    planned = plan(**fields)
    assert sent_kinds(planned) == kinds
    require_policy(Policy.model_validate({"sends": kinds}), planned, None)
    require_policy(Policy(), planned, None)
    for kind in kinds:
        fewer = Policy.model_validate({"sends": [allowed for allowed in kinds if allowed != kind]})
        with pytest.raises(PolicyRefused, match=f"agents send {kind}, .* policy.sends is .*; nothing is"):
            require_policy(fewer, planned, None)


def test_progress_is_not_sent_without_permission(started: Callable[..., Participant]) -> None:
    participant = started(**alone_plan(adapter=LORA, strategy={"name": "fedavg"}))
    participant.trainer.reports_progress = True
    brief = next_brief(participant)
    participant.session.check_brief(brief)
    work = Work(participant, OpenedBrief.of(brief), participant.workspace.rounds.open(1))
    reports = []
    for kinds in (["sketches", "scores"], ["sketches", "scores", "progress"]):
        participant.session.policy = Policy.model_validate({"sends": kinds})
        with step_reports(work):
            reports.append("progress" in {thread.name for thread in threading.enumerate()})
    assert reports == [False, True]


def test_alignment_test_without_permission_builds_no_pack(started: Callable[..., Participant]) -> None:
    participant = started(**alone_plan(alignment={"pivot": "tiny-x-3f0c9a1b2c3d", "frames": "random"}))
    participant.session.policy = Policy(sends=("sketches", "scores"))
    with Bars() as bars, pytest.raises(PolicyRefused, match="agents send alignment"):
        _test_in_federation(participant, None, None, bars, store=True)
    assert not participant.session.api.packs(participant.session.federation_id).items


@pytest.mark.parametrize(
    "rules",
    [
        {"strategies": ["flora"]},
        {"modules": ["q"]},
        {"max_update_bytes": 500},
        {"plan": digest_of(b"")},
        {"sends": ["scores", "progress"]},
    ],
)
def test_refused_plan_is_neither_trained_nor_answered(
    served: Served, started: Callable[..., Participant], rules: dict[str, Any]
) -> None:
    participant = started(**alone_plan(adapter=LORA, strategy={"name": "fedavg"}))
    participant.session.policy = Policy.model_validate(rules)
    for act in (
        lambda: run(participant, limited_sleep(20)),
        lambda: take_part(participant, next_brief(participant)),
    ):
        with pytest.raises(PolicyRefused, match=f"policy.{next(iter(rules))} is .*; nothing is trained"):
            act()
    if "max_update_bytes" not in rules:
        with pytest.raises(PolicyRefused):
            prepare(participant)
    assert not participant.workspace.rounds.open(1).has(WEIGHTS)
    view = served.admin.get(f"/v1/federations/{participant.session.federation_id}/rounds/1").json()
    assert view["counts"]["joined"] == 0


def test_encoded_update_is_measured_before_it_is_sent(started: Callable[..., Participant]) -> None:
    participant = started(**alone_plan(adapter=LORA, strategy={"name": "fedavg"}))
    brief = next_brief(participant)
    participant.session.policy = Policy(max_update_bytes=10**6)
    take_part(participant, brief, until=UPDATE)
    folder = participant.workspace.rounds.open(1)
    size = len(folder.read(UPDATE))
    folder.write(UPDATE, folder.read(UPDATE) + bytes(10**6))
    with pytest.raises(PolicyRefused, match=f"has {size + 10**6} bytes, .* is 1000000; it is not sent"):
        take_part(participant, brief)
    assert not folder.has(RECEIPT)


@pytest.mark.parametrize("recipe", ["dense", "int8_own_last"])
def test_updates_fit_the_size_checked_before_join(
    served: Served, started: Callable[..., Participant], recipe: str
) -> None:
    wire = {"recipe": recipe, "compression": "none"}
    participant = started(**alone_plan(adapter=LORA, strategy={"name": "fedavg"}, wire=wire))
    participant.session.policy = Policy(max_update_bytes=1)
    brief = next_brief(participant)
    with pytest.raises(
        PolicyRefused, match=r"has up to \d+ bytes, .*; nothing is trained or sent"
    ) as refused:
        take_part(participant, brief)
    assert (
        served.admin.get(f"/v1/federations/{participant.session.federation_id}/rounds/1").json()["counts"][
            "joined"
        ]
        == 0
    )
    most = int(str(refused.value).split("has up to ")[1].split()[0])
    participant.session.policy = Policy(max_update_bytes=most)
    take_part(participant, brief, until=UPDATE)
    size = len(participant.workspace.rounds.open(1).read(UPDATE))
    assert most - 6000 < size <= most


def test_check_shows_policy_and_compares_the_plan(tmp_path: Path) -> None:
    file, planned = config(tmp_path), tmp_path / "plan.json"
    assert checked(file)["policy"].detail == "no [policy] in silo.toml: the plan decides (not enrolled yet)"
    file.write_text(f'{file.read_text()}[policy]\nstrategies = ["fedavg"]\nmax_update_bytes = 500\n')
    for strategy, passed in (("fedavg", True), ("flora", False)):
        planned.write_text(json.dumps({"name": "x", "strategy": {"name": strategy}}))
        finding = checked(file, planned)["policy"]
        assert finding.passed is passed
    assert "policy.strategies is fedavg" in finding.detail
    assert "at most 500 bytes per update" in checked(file)["policy"].detail
    file.write_text(f"{file.read_text()}sends = []\n")
    planned.write_text(json.dumps({"name": "x", "strategy": {"name": "fedavg"}}))
    assert "sends nothing" in checked(file)["policy"].detail
    assert "agents send sketches" in checked(file, planned)["policy"].detail


@pytest.mark.parametrize(
    "rule", ['modules = ["b1"]', "max_update_bytes = 0", 'sends = ["text"]', "other = 1", 'plan = "md5:0"']
)
def test_misspelt_policy_rule_is_refused(tmp_path: Path, rule: str) -> None:
    file = config(tmp_path)
    file.write_text(f"{file.read_text()}[policy]\n{rule}\n")
    with pytest.raises(SettingsUnusable, match=r"policy\."):
        read_settings(file)
