"""Operators' commands accept unique names as ids, and ask before final actions."""

from __future__ import annotations

import pytest
import typer

from schemas.command import confirm
from schemas.lookups import NamedEntry, NotIdentified, id_of
from tests.scene.operator import Operator

FIRST, SECOND = (f"fed_{digit * 24}" for digit in "ab")


@pytest.mark.slow
def test_unique_names_are_accepted_by_all_commands(tessera: Operator) -> None:
    federation_id = tessera.served.federation(name="libraries of the north")
    silo = tessera.served.enrol(federation_id, "oslo")
    for name in ("libraries of the north", "Libraries of the  North"):
        assert tessera.json("federation", "show", name)["id"] == federation_id
    assert tessera.json("client", "list", "libraries of the north")[0]["client_id"] == silo.client_id
    assert tessera.json("federation", "start", "libraries of the north")["state"] == "running"
    for command in (("round", "list"), ("round", "show"), ("alignment", "list")):
        tessera(*command, "libraries of the north", "--json")
    token = tessera.json("enrolment", "create", "libraries of the north", "bergen")["token"]
    assert token.startswith("tsr1_")
    revoked = tessera.json("client", "revoke", "libraries of the north", "oslo", "--yes")
    assert revoked == {"client_id": silo.client_id, "state": "revoked"}
    missing = tessera("federation", "show", "libraries of the south", fails=True)
    assert "no federation has the id or name 'libraries of the south'; `tessera federation list`" in missing
    assert "no client has the id or name 'turku'" in tessera(
        "client", "revoke", federation_id, "turku", "--yes", fails=True
    )


def test_a_token_is_revoked_by_name(tessera: Operator) -> None:
    token_id = tessera.json("token", "create", "--role", "auditor", "--name", "Grete")["id"]
    assert tessera.json("token", "revoke", "Grete", "--yes") == {"id": token_id, "revoked": True}


def test_an_ambiguous_name_lists_the_ids() -> None:
    def entries() -> list[NamedEntry]:
        return [NamedEntry(FIRST, "clinics", "open"), NamedEntry(SECOND, "clinics", "finished")]

    with pytest.raises(NotIdentified, match=rf"{FIRST} \(open\), {SECOND} \(finished\); use one"):
        id_of("clinics", "federation", entries, "tessera federation list")
    assert id_of(SECOND, "federation", entries, "") == SECOND


def test_a_name_finds_the_client_not_revoked() -> None:
    clients = [NamedEntry(FIRST, "aster", "revoked", is_over=True), NamedEntry(SECOND, "aster", "enrolled")]
    assert id_of("aster", "client", lambda: clients, "") == SECOND
    assert id_of("aster", "client", lambda: clients[:1], "") == FIRST


@pytest.mark.parametrize(
    "command", [("federation", "finish"), ("client", "revoke"), ("alignment", "delete"), ("token", "revoke")]
)
def test_final_commands_need_confirmation(tessera: Operator, command: tuple[str, str]) -> None:
    federation_id = tessera.served.federation()
    client_id = tessera.served.enrol(federation_id, "aster").client_id
    token_id = tessera.json("token", "create", "--role", "auditor", "--name", "Ada")["id"]
    arguments = {
        "finish": [federation_id],
        "revoke": [token_id] if command[0] == "token" else [federation_id, client_id],
        "delete": [federation_id, "llama-96x4-4e79db21c87f"],
    }[command[1]]
    refused = tessera(*command, *arguments, fails=True)
    assert "nothing was changed; add --yes to the command to confirm: " in refused
    assert tessera.json("federation", "show", federation_id)["state"] == "open"
    assert tessera.json("client", "list", federation_id)[0]["state"] == "enrolled"
    assert [t["revoked_at"] for t in tessera.json("token", "list") if t["id"] == token_id] == [None]
    tessera("token", "revoke", token_id, "--yes")


def test_finish_names_the_abandoned_round(tessera: Operator) -> None:
    federation_id = tessera.served.federation(name="harbours")
    tessera("federation", "start", federation_id)
    refused = tessera("federation", "finish", "harbours", fails=True)
    assert f"harbours ({federation_id}) ends for good: no further round opens, and round 1 (open)" in refused
    assert tessera.json("federation", "finish", "harbours", "--yes")["state"] == "finished"
    assert tessera.json("federation", "finish", "harbours")["state"] == "finished"  # nothing more to confirm


@pytest.mark.parametrize(("answer", "is_done"), [("y", True), ("n", False)])
def test_a_terminal_is_asked_for_confirmation(
    monkeypatch: pytest.MonkeyPatch, answer: str, is_done: bool
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        "typer.confirm", lambda question, **_: question.endswith("Continue?") and answer == "y"
    )
    if is_done:
        confirm("the federation ends for good", yes=False)
    else:
        with pytest.raises(typer.Exit) as ended:
            confirm("the federation ends for good", yes=False)
        assert ended.value.exit_code == 1
