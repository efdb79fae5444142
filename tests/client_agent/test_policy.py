"""A silo's `[policy]`: a plan or an update outside of it is refused before anything is trained or sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_agent.daemon import prepare, run
from client_agent.errors import SettingsUnusable
from client_agent.policy import Policy, PolicyRefused
from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import take_part
from client_agent.settings import read_settings
from client_agent.storage.round_folder import RECEIPT, UPDATE, WEIGHTS
from schemas.messages.federations import FederationPlan
from schemas.wire.digests import digest_of
from tests.client_agent.conftest import checked, config, next_brief
from tests.client_agent.test_daemon import alone_plan, naps
from tests.served import Served

LORA = {"kind": "lora", "rank": 4, "roles": ["v", "down"]}
PQ = {"kind": "pq", "blocks": 2, "rank": 4, "roles": ["q", "v"]}


def plan(**fields: Any) -> FederationPlan:
    return FederationPlan.model_validate({"name": "x", "strategy": {"name": "fedavg"}} | fields)


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
def test_a_plan_is_held_to_each_rule(
    rules: dict[str, Any], adapter: dict[str, Any], refusal: str | None
) -> None:
    policy = Policy.model_validate(rules)
    if refusal is None:
        policy.require_plan(plan(adapter=adapter), b"{}")
        return
    with pytest.raises(PolicyRefused, match=refusal):
        policy.require_plan(plan(adapter=adapter), b"{}")


@pytest.mark.parametrize(
    "rules",
    [{"strategies": ["flora"]}, {"modules": ["q"]}, {"max_update_bytes": 500}, {"plan": digest_of(b"")}],
)
def test_a_refused_plan_is_neither_trained_nor_answered(
    served: Served, started: Callable[..., Participant], rules: dict[str, Any]
) -> None:
    who = started(**alone_plan(adapter=LORA, strategy={"name": "fedavg"}))
    who.session.policy = Policy.model_validate(rules)
    for act in (lambda: run(who, naps(20)), lambda: take_part(who, next_brief(who))):
        with pytest.raises(PolicyRefused, match=f"policy.{next(iter(rules))} is .*; nothing is trained"):
            act()
    if "max_update_bytes" not in rules:
        with pytest.raises(PolicyRefused):
            prepare(who)
    assert not who.workspace.rounds.open(1).has(WEIGHTS)
    view = served.admin.get(f"/v1/federations/{who.session.federation_id}/rounds/1").json()
    assert view["counts"]["joined"] == 0


def test_an_encoded_update_is_measured_before_it_is_sent(started: Callable[..., Participant]) -> None:
    who = started(**alone_plan(adapter=LORA, strategy={"name": "fedavg"}))
    brief = next_brief(who)
    who.session.policy = Policy(max_update_bytes=10**6)
    take_part(who, brief, until=UPDATE)
    folder = who.workspace.rounds.open(1)
    size = len(folder.read(UPDATE))
    folder.write(UPDATE, folder.read(UPDATE) + bytes(10**6))
    with pytest.raises(PolicyRefused, match=f"has {size + 10**6} bytes, .* is 1000000; nothing"):
        take_part(who, brief)
    assert not folder.has(RECEIPT)


def test_the_check_shows_the_policy_and_holds_a_plan_to_it(tmp_path: Path) -> None:
    file, planned = config(tmp_path), tmp_path / "plan.json"
    assert checked(file)["policy"].detail == "no [policy] in silo.toml: the plan decides (not enrolled yet)"
    file.write_text(f'{file.read_text()}[policy]\nstrategies = ["fedavg"]\nmax_update_bytes = 500\n')
    for strategy, passed in (("fedavg", True), ("flora", False)):
        planned.write_text(json.dumps({"name": "x", "strategy": {"name": strategy}}))
        finding = checked(file, planned)["policy"]
        assert finding.passed is passed
    assert "policy.strategies is fedavg" in finding.detail
    assert "at most 500 bytes per update" in checked(file)["policy"].detail


@pytest.mark.parametrize("rule", ['modules = ["b1"]', "max_update_bytes = 0", "other = 1", 'plan = "md5:0"'])
def test_a_misspelt_rule_is_refused(tmp_path: Path, rule: str) -> None:
    file = config(tmp_path)
    file.write_text(f"{file.read_text()}[policy]\n{rule}\n")
    with pytest.raises(SettingsUnusable, match=r"policy\."):
        read_settings(file)
