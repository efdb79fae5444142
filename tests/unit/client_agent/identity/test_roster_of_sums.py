"""Members of a sum verify each other's keys in the roster, up to the version in the terms."""

from __future__ import annotations

import pytest

from client_agent.errors import RosterRefused
from client_agent.identity.roster import ROSTER, Roster
from schemas.identity.documents import hash_of
from schemas.messages.rounds import SignedDocument
from tests.scene.agents import Enrolled
from tests.scene.coordinator import Served

PLAN = {
    "rounds": {"min_clients": 3},
    "privacy": {"secure_sum": {"minimum": 3}},
}


def links(served: Served, federation_id: str) -> list[SignedDocument]:
    page = served.admin.get(f"/v1/federations/{federation_id}/roster").json()
    return list(page["items"])


def test_roster_gives_the_keys_of_a_version(served: Served, participant: Enrolled) -> None:
    federation_id = served.federation(**PLAN)
    session = participant(federation_id).session
    second = served.enrol(federation_id, "birch", capabilities=["secure-sum-3"])
    before = links(served, federation_id)
    served.admin.delete(f"/v1/federations/{federation_id}/clients/{second.client_id}")
    after = links(served, federation_id)
    assert len(after) == len(before) + 1
    roster = Roster(session.home, "server", {})
    keys = roster.keys_at(federation_id, len(before), hash_of(before[-1]), session.api)
    assert set(keys) == {session.client_id, second.client_id}
    assert (session.home / ROSTER).is_file()
    assert set(roster.keys_at(federation_id, len(after), hash_of(after[-1]), session.api)) == {
        session.client_id
    }
    with pytest.raises(RosterRefused, match="went back"):
        roster.keys_at(federation_id, len(before), hash_of(before[-1]), session.api)


def test_roster_other_than_in_the_terms_is_refused(served: Served, participant: Enrolled) -> None:
    federation_id = served.federation(**PLAN)
    session = participant(federation_id).session
    stored = links(served, federation_id)
    roster = Roster(session.home, "tofu", {})
    with pytest.raises(RosterRefused, match="not the roster that the coordinator signed"):
        roster.keys_at(federation_id, len(stored), f"sha256:{'0' * 64}", session.api)
    with pytest.raises(RosterRefused, match="shorter"):
        roster.keys_at(federation_id, len(stored) + 1, hash_of(stored[-1]), session.api)
    pinned = Roster(session.home, "pinned", {"birch": "key"})
    with pytest.raises(RosterRefused, match="not pinned"):
        pinned.keys_at(federation_id, len(stored), hash_of(stored[-1]), session.api)
