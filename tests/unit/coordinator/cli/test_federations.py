"""Output of `tessera federation`: a summary with the next command, and the plan on request."""

from __future__ import annotations

from schemas.messages.federations import ALL_ROLES
from tests.scene.operator import Operator


def test_a_federation_summary_names_the_next_command(tessera: Operator) -> None:
    shown = tessera("federation", "create", "--name", "clinics", "--strategy", "fedavg", "--min-clients", "1")
    facts = _facts(shown)
    federation_id = facts["id"]
    assert list(facts) == ["id", "name", "state", "next", "round", "clients", "created", "plan"]
    assert facts["next"] == f"tessera enrolment create {federation_id} NAME"
    assert facts["clients"] == "0 enrolled; a round waits for 1"
    assert facts["plan"] == f"tessera federation show {federation_id} --plan"
    tessera.served.enrol(federation_id, "a", shapes={role: [64, 64] for role in ALL_ROLES})
    assert _facts(tessera("federation", "show", federation_id))["next"].startswith("tessera federation start")
    assert _facts(tessera("federation", "start", federation_id))["next"].startswith("tessera round watch")
    assert _facts(tessera("federation", "pause", federation_id))["next"].startswith(
        "tessera federation start"
    )
    assert _facts(tessera("federation", "finish", federation_id, "--yes"))["next"].startswith(
        "tessera round list"
    )


def test_plan_and_claims_are_shown_on_request(tessera: Operator) -> None:
    created = tessera.json("federation", "create", "--name", "x", "--strategy", "fedmosaic")
    short = _facts(tessera("federation", "show", created["id"]))
    whole = _facts(tessera("federation", "show", created["id"], "--plan"))
    assert "claim 1" not in short
    assert {"strategy", "training", "privacy", "privacy of a record", "claim 1"} <= set(whole)
    assert tessera.json("federation", "show", created["id"])["claims"] == created["claims"]


def test_create_prints_only_the_id_with_quiet(tessera: Operator) -> None:
    create = ("federation", "create", "--name", "x", "--strategy", "fedavg", "--quiet")
    federation_id = tessera(*create).removesuffix("\n")
    assert tessera.json("federation", "show", federation_id)["state"] == "open"
    before = tessera.json("federation", "list")
    assert "exclude each other" in tessera(*create, "--json", fails=True)
    assert tessera.json("federation", "list") == before


def test_anchors_are_the_next_step_with_a_pivot(tessera: Operator) -> None:
    create = ("federation", "create", "--name", "x", "--strategy", "fedmosaic", "--pivot")
    facts = _facts(tessera(*create, "llama-96x4-4e79db21c87f"))
    assert facts["next"] == f"tessera anchors put {facts['id']} anchors.json"


def test_federation_without_a_round_is_removed(tessera: Operator) -> None:
    mistake = tessera.json("federation", "create", "--name", "mistake", "--strategy", "fedavg")["id"]
    assert "--yes" in tessera("federation", "remove", "mistake", fails=True)
    assert tessera.json("federation", "remove", "mistake", "--yes") == {"id": mistake, "removed": True}
    started = tessera.served.federation(name="started")
    tessera("federation", "start", started)
    assert "finish it instead" in tessera("federation", "remove", started, "--yes", fails=True)


def _facts(shown: str) -> dict[str, str]:
    """Return the printed facts by name, which two spaces at least separate from them."""
    return {
        name.strip(): fact.strip() for name, _, fact in (line.partition("  ") for line in shown.splitlines())
    }
