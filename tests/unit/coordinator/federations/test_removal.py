"""A federation that was never started can be removed; one with a round cannot."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select

from coordinator.db.tables.federations import Table
from tests.scene.alignment import LARGE, PIVOT, aligned, put_pack
from tests.scene.coordinator import Served, slug
from tests.scene.rounds import running


def _tables_with(served: Served, ids: set[str]) -> set[str]:
    """Return the tables in which a column has one of the ids."""
    with served.database.autocommit() as connection:
        return {
            table.name
            for table in Table.metadata.sorted_tables
            for row in connection.execute(select(table))
            if ids & {str(value) for value in row}
        }


def test_a_removed_federation_leaves_only_audit_entries(
    serve: Callable[..., Served], database_url: str
) -> None:
    coordinator = serve(database_url)
    federation_id = aligned(coordinator, name="a mistake")
    for base_model in (PIVOT, LARGE):
        assert put_pack(coordinator.admin, federation_id, base_model).status_code == 201
    silo = coordinator.enrol_over_http(federation_id, "aster", base_model=LARGE)
    coordinator.enrolment_token(federation_id, "birch", organisation="a clinic")
    ids = {federation_id, silo.client_id}
    assert {"clients", "roster", "events", "anchors", "name_keys"} <= _tables_with(coordinator, ids)
    removed = coordinator.admin.delete(f"/v1/federations/{federation_id}")
    assert (removed.status_code, removed.content) == (204, b"")
    assert _tables_with(coordinator, ids) == set()
    assert slug(coordinator.admin.get(f"/v1/federations/{federation_id}")) == "not-found"
    assert slug(coordinator.admin.delete(f"/v1/federations/{federation_id}")) == "not-found"
    assert slug(silo.http.get("/v1/me")) == "signature-invalid"
    last = _last_entry(coordinator)
    assert (last["event"], last["subject"], last["reason"]) == (
        "federation-removed",
        federation_id,
        "a mistake",
    )
    again = coordinator.admin.post(
        "/v1/federations", json={"name": "a mistake", "strategy": {"name": "fedavg"}}
    )
    assert again.status_code == 201


def _last_entry(served: Served) -> dict[str, str]:
    head = served.admin.get("/v1/audit", params={"limit": 1}).json()["head"]["number"]
    (entry,) = served.admin.get("/v1/audit", params={"after": head - 1}).json()["items"]
    return dict(entry)


def test_started_federation_is_kept(coordinator: Served) -> None:
    federation_id, _ = running(coordinator)
    for order in ("pause", "finish"):
        refused = coordinator.admin.delete(f"/v1/federations/{federation_id}")
        assert (refused.status_code, slug(refused)) == (409, "federation-state")
        assert "was started, and its rounds are kept; finish it instead" in refused.json()["detail"]
        assert coordinator.admin.post(f"/v1/federations/{federation_id}/{order}").status_code == 200
    assert coordinator.admin.get(f"/v1/federations/{federation_id}").json()["state"] == "finished"


def test_operators_remove_no_federation(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    refused = coordinator.person("operator").delete(f"/v1/federations/{federation_id}")
    assert slug(refused) == "forbidden"
    assert coordinator.admin.get(f"/v1/federations/{federation_id}").status_code == 200
