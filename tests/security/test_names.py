"""Names that a terminal would act on, or that read as another name, are refused; old ones still load."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import TypeAdapter
from sqlalchemy import create_engine, update

from coordinator.cli.output import text
from coordinator.db.tables.federations import ClientRow, FederationRow
from schemas.messages.names import NewName, printable
from tests.coordinator.cli.test_operator import Operator
from tests.served import Served, enrolment, slug
from tests.taking_part import join, running

HOSTILE = {
    "C1 control": "a\x9b31mb",
    "next line": "a\x85b",
    "right-to-left override": "a\u202eb",
    "bidi isolate": "a\u2066b",
    "zero width": "a\u200bb",
    "line separator": "a\u2028b",
    "paragraph separator": "a\u2029b",
    "private use": "a\ue000b",
    "tag": "a\U000e0041b",
}
OLD = "clinic\u202e\x9b2J"


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_new_name_has_a_character_that_is_not_shown(coordinator: Served, name: str) -> None:
    plan = {"name": name, "strategy": {"name": "fedavg"}}
    fid = coordinator.federation()
    for path, body in (
        ("/v1/federations", plan),
        (f"/v1/federations/{fid}/enrolment-tokens", {"client_name": name}),
        (f"/v1/federations/{fid}/enrolment-tokens", {"client_name": "a", "organisation": name}),
        ("/v1/tokens", {"role": "auditor", "name": name}),
    ):
        answer = coordinator.admin.post(path, json=body)
        assert (answer.status_code, slug(answer)) == (422, "validation"), path
    anyone, token = coordinator.http(), coordinator.enrolment_token(fid, "a")
    request = enrolment(anyone, token, name, Ed25519PrivateKey.generate())
    assert anyone.post("/v1/enrolments", json=request).status_code == 422


def test_names_of_all_languages_are_taken() -> None:
    for name in (
        "Clinique Sainte-Thérèse",
        "Charité – Berlin",
        "北京协和医院",
        "بيمارستان",
        "O'Brien & Co. №1",
    ):
        assert TypeAdapter(NewName).validate_python(name) == name
        assert printable(name) == name


def test_an_old_name_still_loads_and_is_escaped_in_the_terminal(coordinator: Served) -> None:
    operator = Operator(coordinator)
    fid, (silo, _) = running(coordinator)
    plan: dict[str, Any] = coordinator.admin.get(f"/v1/federations/{fid}").json()["plan"]
    engine = create_engine(coordinator.database_url)
    with engine.begin() as connection:
        named = update(FederationRow).where(FederationRow.id == fid)
        connection.execute(named.values(name=OLD, plan=plan | {"name": OLD}))
        connection.execute(update(ClientRow).where(ClientRow.id == silo.client_id).values(name=OLD))
    engine.dispose()
    assert coordinator.admin.get(f"/v1/federations/{fid}").json()["name"] == OLD
    assert silo.http.get("/v1/me").json()["name"] == OLD
    join(silo, 1)
    assert coordinator.admin.get(f"/v1/federations/{fid}/rounds/1").json()["clients"][0]["name"] == OLD
    for command in (("federation", "list"), ("federation", "show", fid), ("client", "list", fid)):
        shown = operator(*command)
        assert not {"\u202e", "\x9b"} & set(shown), command
        assert "\\u202e\\x9b2J" in shown.replace("\n", ""), command
    listed = json.loads(operator("federation", "list", "--json"))
    assert OLD in {one["name"] for one in listed}


def test_ends_of_lines_are_shown_as_they_are() -> None:
    assert text("a\nb\x1b[2J") == "a\nb\\x1b[2J"
