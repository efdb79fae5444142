"""Entries of the audit log about adapters and alignment, and the signature of its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqlalchemy import text
from typer import Typer
from typer.testing import CliRunner

from coordinator import cli
from schemas.identity.documents import hash_of, is_signed
from schemas.identity.keys import public_key
from tests.scene.alignment import LARGE, acceptance_figures, with_packs
from tests.scene.coordinator import ADMIN_TOKEN, Served, coordinator_fixture
from tests.scene.rounds import deliver, running, values

served = coordinator_fixture("each")


def entries(served: Served) -> list[tuple[str, str, str, str | None]]:
    items = served.admin.get("/v1/audit").json()["items"]
    return [(e["event"], e["actor"], e["subject"], e["reason"]) for e in items]


def test_an_adapter_download_by_a_person_is_audited(served: Served) -> None:
    federation_id, (silo, _) = running(served)
    deliver(silo, 1, values(1.0))
    path = f"/v1/federations/{federation_id}/clients/{silo.client_id}/adapter"
    before = entries(served)
    assert silo.http.get(path).status_code == 200, "the client's own is nobody's business"
    assert served.person("auditor").get(path).status_code == 403
    assert served.admin.get(path).status_code == 200
    assert [e for e in entries(served)[len(before) :] if e[0] != "person-token-made"] == [
        ("adapter-downloaded", "settings", silo.client_id, "round 1")
    ]


def test_alignment_actions_of_persons_are_audited(served: Served) -> None:
    federation_id, pack = with_packs(served)
    path = f"/v1/federations/{federation_id}/alignments/{LARGE}/acceptance"
    for _ in range(2):
        assert served.admin.put(path, json=acceptance_figures(pack)).status_code in (200, 201)
    actions = [entry for entry in entries(served) if entry[0] != "federation-created"]
    assert [(event, actor, subject) for event, actor, subject, _ in actions] == [
        ("anchors-set", "settings", federation_id),
        ("pack-stored", "settings", federation_id),
        ("pack-stored", "settings", federation_id),
        ("acceptance-set", "settings", federation_id),
    ]
    assert [reason for *_, reason in actions][2:] == [f"{LARGE}: {pack}", f"{LARGE}: passed"]


def test_alignment_actions_of_clients_are_not_audited(served: Served) -> None:
    federation_id, pack = with_packs(served)
    before = len(entries(served))
    silo = served.enrol_over_http(federation_id, "a", base_model=LARGE)
    path = f"/v1/federations/{federation_id}/alignments/{LARGE}/acceptance"
    assert silo.http.put(path, json=acceptance_figures(pack)).status_code == 201
    assert [entry[0] for entry in entries(served)[before:]] == ["enrolment-token-made", "client-enrolled"]


def test_the_audit_head_is_signed_on_each_page(served: Served) -> None:
    key = public_key(served.http().get("/v1/hello").json()["signing_key"])
    assert served.admin.get("/v1/audit").json()["head"] is None
    for _ in range(3):
        served.federation()
    for query in ({}, {"limit": 1}):
        page = served.admin.get("/v1/audit", params=query).json()
        head = page["head"]
        assert is_signed("tessera-audit-v1", head, head["signature"], key)
        assert not is_signed("tessera-audit-v1", head | {"number": 2}, head["signature"], key)
        assert head["number"] == 3
    whole = served.admin.get("/v1/audit").json()
    assert hash_of(whole["items"][-1]) == whole["head"]["hash"]


def audit(served: Served, *arguments: str) -> tuple[int, str]:
    app = Typer()
    cli.commands(app)
    done = CliRunner().invoke(app, ["audit", "--url", served.url, "--token", ADMIN_TOKEN, *arguments])
    return done.exit_code, done.output + done.stderr


def rewrite(served: Served) -> None:
    """Rewrite the audit log as another valid chain."""
    with served.database.write() as session:
        rows = session.execute(text("SELECT number, document FROM audit ORDER BY number")).all()
        previous: str | None = None
        for number, stored in rows:
            entry: dict[str, Any] = json.loads(stored) if isinstance(stored, str) else dict(stored)
            entry |= {"actor": "nobody", "previous": previous}
            previous = hash_of(entry)
            session.execute(
                text("UPDATE audit SET document = :document, hash = :hash WHERE number = :number"),
                {"document": json.dumps(entry), "hash": previous, "number": number},
            )


def test_a_rewritten_audit_log_contradicts_the_kept_head(served: Served, tmp_path: Path) -> None:
    stored_head = tmp_path / "head.json"
    for _ in range(2):
        served.federation()
    code, output = audit(served, "--head", str(stored_head))
    assert (code, "Signed by the coordinator" in output) == (0, True), output
    served.federation()
    assert audit(served, "--head", str(stored_head))[0] == 0, "it has grown"
    rewrite(served)
    assert audit(served)[0] == 0, "another chain is a chain"
    code, output = audit(served, "--head", str(stored_head))
    assert (code, "was replaced" in output) == (1, True), output


def test_a_kept_head_without_valid_signature_is_refused(served: Served, tmp_path: Path) -> None:
    stored_head = tmp_path / "head.json"
    served.federation()
    assert audit(served, "--head", str(stored_head))[0] == 0
    stored_head.write_text(json.dumps(json.loads(stored_head.read_text()) | {"number": 7}))
    assert "not signed" in audit(served, "--head", str(stored_head))[1]
    stored_head.write_text("[]")
    assert "is not the head" in audit(served, "--head", str(stored_head))[1]
