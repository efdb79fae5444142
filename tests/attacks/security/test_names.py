"""Stored names with control characters: they load, and terminals show them escaped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import update

from coordinator.cli.output import text
from coordinator.db.tables.federations import ClientRow, FederationRow
from tests.scene.coordinator import Served
from tests.scene.operator import Operator
from tests.scene.rounds import join, running

RAW = "clinic\u202e\x9b2J"


@pytest.mark.slow
def test_raw_names_load_and_are_escaped_in_terminals(coordinator: Served) -> None:
    operator = Operator(coordinator)
    federation_id, (silo, _) = running(coordinator)
    plan: dict[str, Any] = coordinator.admin.get(f"/v1/federations/{federation_id}").json()["plan"]
    with coordinator.database.write() as session:
        named = update(FederationRow).where(FederationRow.id == federation_id)
        session.execute(named.values(name=RAW, plan=plan | {"name": RAW}))
        session.execute(update(ClientRow).where(ClientRow.id == silo.client_id).values(name=RAW))
    assert coordinator.admin.get(f"/v1/federations/{federation_id}").json()["name"] == RAW
    assert silo.http.get("/v1/me").json()["name"] == RAW
    join(silo, 1)
    assert (
        coordinator.admin.get(f"/v1/federations/{federation_id}/rounds/1").json()["clients"][0]["name"] == RAW
    )
    for command in (
        ("federation", "list"),
        ("federation", "show", federation_id),
        ("client", "list", federation_id),
    ):
        shown = operator(*command)
        assert not {"\u202e", "\x9b"} & set(shown), command
        assert "\\u202e\\x9b2J" in shown.replace("\n", ""), command
    listed = json.loads(operator("federation", "list", "--json"))
    assert RAW in {entry["name"] for entry in listed}


def test_ends_of_lines_are_shown_as_they_are() -> None:
    assert text("a\nb\x1b[2J") == "a\nb\\x1b[2J"
