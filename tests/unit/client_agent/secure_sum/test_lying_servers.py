"""Members driven by a lying coordinator stop before they reveal anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_agent.errors import SumRefused
from coordinator.secure_sum import intake
from tests.scene.secure_sums import terms_of
from tests.unit.client_agent.secure_sum.memory_server import (
    MemoryCalls,
    change_answers,
    members_of,
    run_all,
    run_until_all_left,
)

OTHER = f"sha256:{'1' * 64}"

LIES: dict[str, tuple[dict[str, Any], str]] = {
    "another plan": ({"plan": OTHER}, "`plan` of the terms"),
    "other weights": ({"weights": OTHER}, "`weights` of the terms"),
    "no masks": ({"masking": "none"}, "`masking` of the terms"),
    "a lower threshold": ({"threshold": 3}, "the threshold of 5 members is 4"),
    "a lower minimum": ({"minimum": 2}, "a sum has at least 3 members here"),
    "other clips": ({"segments": [{"name": "lora", "values": 20, "clip": 1}]}, "`segments` of the terms"),
    "a session of counts": ({"kind": "counts"}, "`kind` of the terms"),
}


@pytest.mark.parametrize("lie", LIES)
def test_terms_that_contradict_the_plan_stop_the_agent(lie: str, tmp_path: Path) -> None:
    changes, reason = LIES[lie]
    member = members_of(tmp_path, 5, terms_of(5, **changes))[0]
    honest = terms_of(5)
    member.expected = {"segments": tuple(honest.segments), "masking": "pairwise", "kind": "sum"}
    with pytest.raises(SumRefused, match=reason):
        member.run()
    assert not member.calls.server.log
    assert len(list(member.journal.evidence.iterdir())) == 1
    assert not (member.folder / "secure").exists()


def test_changed_terms_of_a_running_session_are_refused(tmp_path: Path) -> None:
    members = members_of(tmp_path, 5)
    server = members[0].calls.server
    for member in members:
        member.calls.stop_before = 1
    assert len(run_all(members)) == 5
    server.terms = terms_of(5, nonce="b3RoZXI")
    with pytest.raises(SumRefused, match="two terms of session 1"):
        members[0].run()
    assert len(list(members[0].journal.evidence.iterdir())) == 2


def test_terms_of_an_unannounced_session_are_refused(tmp_path: Path) -> None:
    member = members_of(tmp_path, 5)[0]
    server = member.calls.server
    honest = server.status
    server.status = lambda: honest().model_copy(update={"session": 2})  # type: ignore[method-assign]
    with pytest.raises(SumRefused, match="another session"):
        member.run()


def _without_self(calls: MemoryCalls, body: bytes) -> bytes:
    closed = [n for n in calls.server.closed[1, 2] if n != calls.position]
    return intake.masked_answer(calls.server.terms, dict.fromkeys(closed)).model_dump_json().encode()


def _too_few(calls: MemoryCalls, body: bytes) -> bytes:
    few = calls.position, (calls.position + 1) % 5
    return intake.masked_answer(calls.server.terms, dict.fromkeys(few)).model_dump_json().encode()


def _different_sets(calls: MemoryCalls, body: bytes) -> bytes:
    """Show every member a set that lacks another one."""
    closed = [n for n in range(5) if n != (calls.position + 1) % 5]
    return intake.masked_answer(calls.server.terms, dict.fromkeys(closed)).model_dump_json().encode()


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (_without_self, "this member's masked vector is not in the sum"),
        (_too_few, "too few members sent masked vectors"),
    ],
)
def test_false_set_of_members_ends_the_session(
    lie: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_answers(monkeypatch, 2, lie)
    members = members_of(tmp_path, 5)
    server = members[0].calls.server
    run_until_all_left(members)
    assert not [entry for entry in server.log if entry[2] > 2]
    for member in members:
        reasons = [report.reason for report in member.reports if report.reason]
        assert reason in reasons[0]
        assert not list(member.folder.rglob("put-*"))


def test_different_sets_for_different_members_reveal_no_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_answers(monkeypatch, 2, _different_sets)
    members = members_of(tmp_path, 5)
    run_until_all_left(members)
    assert not [entry for entry in members[0].calls.server.log if entry[2] == 4]
    reasons = [report.reason or "" for member in members for report in member.reports if report.reason]
    assert any("a member confirmed" in reason for reason in reasons)
