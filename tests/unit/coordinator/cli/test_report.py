"""`tessera report`: its content for an auditor, and the detection of any change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from coordinator.cli.report import fault_of
from coordinator.cli.report_page import page
from coordinator.db.tables.federations import SignatureRow, UpdateRow
from schemas.identity.documents import hash_of
from schemas.identity.keys import thumbprint
from schemas.wire.digests import digest_of
from tests.scene.coordinator import Served, start
from tests.scene.operator import Operator
from tests.scene.rounds import deliver, join, plan, running, scored, url, values
from tests.scene.waiting import wait_until

COORDINATOR = "Hub <script>alert(1)</script> & clinics"


@pytest.fixture(scope="module")
def reported(fresh_database: Callable[[str], str]) -> Iterator[tuple[Served, str, dict[str, Any]]]:
    """A federation with a published round, a revoked member, and an abandoned round; and its report."""
    served = start(fresh_database("sqlite"), tick_seconds=0.05, name=COORDINATOR)
    try:
        yield served, *_reported(served)
    finally:
        served.stop()


def _reported(served: Served) -> tuple[str, dict[str, Any]]:
    federation_id, silos = running(served, 3, **plan(rounds={"total": 3}))
    for silo in silos[:2]:
        deliver(silo, 1, values(1.0))
    for silo, change in zip(silos, (-0.5, 0.1), strict=False):
        mixing = {"value": change, "error": 0.1, "count": 12}
        assert silo.http.put(url(silo, 1, "/scores"), json=scored({"loss": 1.0}, mixing=mixing)).is_success
    wait_until(lambda: served.round_state(federation_id, 2) == "open")
    join(silos[2], 2)
    with served.database.write() as session:
        session.execute(update(SignatureRow).values(epsilon=0.53))
        first_update, second_update = session.scalars(select(UpdateRow).order_by(UpdateRow.client_id))
        first_update.training_epsilon, second_update.training_epsilon = 1.25, 0.75
    path = f"/v1/federations/{federation_id}"
    assert served.admin.delete(f"{path}/clients/{silos[2].client_id}").status_code == 204
    assert served.admin.post(f"{path}/finish").status_code == 200
    return federation_id, served.admin.get(f"{path}/report").json()


def test_a_report_contains_plan_roster_members_and_rounds(
    reported: tuple[Served, str, dict[str, Any]],
) -> None:
    served, federation_id, report = reported
    assert (report["federation"], report["name"], report["state"]) == (federation_id, "clinics", "finished")
    served_plan = served.admin.get(f"/v1/federations/{federation_id}/plan").content
    assert report["plan_digest"] == digest_of(served_plan)
    assert report["claims"] == served.admin.get(f"/v1/federations/{federation_id}").json()["claims"]
    roster = served.admin.get(f"/v1/federations/{federation_id}/roster").json()["items"]
    assert (report["roster_version"], report["roster_hash"]) == (4, hash_of(roster[-1]))
    keys = {entry["client"]: thumbprint(entry["public_key"]) for entry in roster if entry["public_key"]}
    assert {member["client"]: member["key"] for member in report["members"]} == keys
    first, second, third = sorted(report["members"], key=lambda member: member["client"])
    assert third["revoked_at"]
    assert not first["revoked_at"]
    assert [m["epsilon"] for m in (first, second, third)] == ["0.53", "0.53", None]
    assert [m["training_epsilon"] for m in (first, second, third)] == ["1.25", "0.75", None]
    first_round, two = report["rounds"]
    assert (first_round["state"], two["state"], two["reason"]) == ("published", "abandoned", "finished")
    assert first_round["counted"] == [first["client"], second["client"]]
    assert two["counted"] == []
    assert (first_round["mixing"], two["mixing"]) == ({"better": 1, "worse": 0, "noise": 1}, None)
    assert "1 better, 0 worse, 1 within noise" in page(report)
    assert (
        first_round["bytes"]["up"] == sum(part["bytes"]["up"] for part in first_round["participations"]) > 0
    )
    assert [part["state"] for part in two["participations"]] == ["revoked"]


def test_reports_contain_digests_of_updates_and_manifests(coordinator: Served) -> None:
    federation_id, (silo, _) = running(coordinator)
    receipt = deliver(silo, 1, values(2.0)).json()
    manifest = silo.http.get(url(silo, 1, "/manifest")).json()
    report = coordinator.person("auditor").get(f"/v1/federations/{federation_id}/report").json()
    (part,) = report["rounds"][0]["participations"]
    assert (part["update"], part["manifest"]) == (receipt["digest"], hash_of(manifest))
    assert report["rounds"][0]["counted"] == [], "the round is not published"
    assert manifest["plan"] == report["plan_digest"]


def test_reports_contain_the_federations_audit_entries(
    reported: tuple[Served, str, dict[str, Any]],
) -> None:
    served, federation_id, report = reported
    stranger = served.federation(name="another")
    served.enrolment_token(stranger, "somebody")
    again = served.admin.get(f"/v1/federations/{federation_id}/report").json()
    assert again["audit"] == report["audit"]
    assert again["audit_number"] == report["audit_number"] + 2
    assert {entry["event"] for entry in report["audit"]} == {
        "federation-created",
        "federation-started",
        "federation-finished",
        "client-enrolled",
        "client-revoked",
    }


def test_a_report_is_written_and_verified_offline(
    reported: tuple[Served, str, dict[str, Any]], tmp_path: Path
) -> None:
    served, federation_id, report = reported
    operator = Operator(served)
    files = [tmp_path / "report.json", tmp_path / "report.html"]
    shown = operator("report", "create", federation_id, "--json", str(files[0]), "--html", str(files[1]))
    assert thumbprint(report["signing_key"]) in shown
    offline = Operator(Served("http://127.0.0.1:1", "", None, None))  # type: ignore[arg-type]
    for file in files:
        for key in (report["signing_key"], thumbprint(report["signing_key"])):
            printed = offline("report", "verify", str(file), "--coordinator-key", key)
            assert "unchanged" in printed
            assert federation_id in printed
    assert json.loads(operator("report", "create", federation_id))["federation"] == federation_id


def _changed(value: Any, visited: list[Any]) -> Iterator[Callable[[], None]]:
    """Yield a function per place of a document that changes it; callers work on a copy."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in list(items):
        if isinstance(member, dict | list) and member:
            yield from _changed(member, visited)
        else:
            yield lambda value=value, key=key, member=member: value.__setitem__(key, _different_value(member))


def _different_value(member: Any) -> Any:
    if isinstance(member, str):
        return member + "x" if not member[:1].isdigit() else "1" + member[1:-1] + "7Z"
    return member + 1 if isinstance(member, int) else "x"


def test_changes_of_any_field_are_detected(reported: tuple[Served, str, dict[str, Any]]) -> None:
    key = reported[2]["signing_key"]
    text = json.dumps(reported[2])
    assert fault_of(json.loads(text), key) is None
    count = sum(1 for _ in _changed(json.loads(text), []))
    assert count > 100
    for index in range(count):
        document = json.loads(text)
        list(_changed(document, []))[index]()
        assert document != reported[2]
        assert fault_of(document, key) is not None, index


def test_omissions_and_additions_are_detected(reported: tuple[Served, str, dict[str, Any]]) -> None:
    report = reported[2]
    for member in report:
        assert fault_of({name: v for name, v in report.items() if name != member}, report["signing_key"])
    assert fault_of(report | {"note": "approved"}, report["signing_key"])
    assert fault_of(report | {"rounds": report["rounds"][:1]}, report["signing_key"])
    assert fault_of(report | {"audit": report["audit"][1:]}, report["signing_key"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("finished", "running", 1), "changed"),
        (lambda text: text.replace('"version": 1', '"version": 1, "version": 1'), "changed"),
        (lambda text: text[: len(text) // 2], "changed"),
        (lambda text: "[]", "changed"),
    ],
)
def test_a_changed_file_is_refused(
    reported: tuple[Served, str, dict[str, Any]],
    tmp_path: Path,
    change: Callable[[str], str],
    reason: str,
) -> None:
    served, _, report = reported
    file = tmp_path / "report.json"
    file.write_text(change(json.dumps(report)), "utf-8")
    key = report["signing_key"]
    assert reason in Operator(served)("report", "verify", str(file), "--coordinator-key", key, fails=True)


def test_a_page_with_changed_text_is_refused(
    reported: tuple[Served, str, dict[str, Any]], tmp_path: Path
) -> None:
    served, _, report = reported
    file, key = tmp_path / "report.html", report["signing_key"]
    file.write_text(page(report).replace("1 published", "2 published"), "utf-8")
    printed = Operator(served)("report", "verify", str(file), "--coordinator-key", key, fails=True)
    assert "differs from the signed data" in printed


def test_another_key_is_refused_with_its_thumbprint(
    reported: tuple[Served, str, dict[str, Any]], tmp_path: Path
) -> None:
    served, _, report = reported
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report), "utf-8")
    printed = Operator(served)("report", "verify", str(file), "--coordinator-key", "A" * 43, fails=True)
    assert thumbprint(report["signing_key"]) in printed
    assert "43 characters" in Operator(served)(
        "report", "verify", str(file), "--coordinator-key", "short", fails=True
    )


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_complete_without_scripts_or_resources(
    reported: tuple[Served, str, dict[str, Any]],
) -> None:
    text = page(reported[2])
    tags = _Tags()
    tags.feed(text)
    assert tags.open == []
    names = {tag for tag, _ in tags.seen}
    assert not names & {"img", "link", "iframe", "a", "form"}
    scripts = [attributes for tag, attributes in tags.seen if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "report"}]
    assert "alert(1)" in text
    assert "<script>alert" not in text
    assert "default-src 'none'" in text
    for member in reported[2]["members"]:
        assert member["key"] in text
    assert "@media print" in text


def test_an_unknown_federation_has_no_report(coordinator: Served) -> None:
    assert "not-found" in Operator(coordinator)("report", "create", "fed_x", fails=True)
