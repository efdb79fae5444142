"""A revision is served as an ordinary body, and a change of the bank is an event of its federation."""

from __future__ import annotations

import numpy as np

from coordinator.db.engine import Database, database_time
from coordinator.experts.announcements import announce
from coordinator.experts.bank import Event
from coordinator.experts.bodies import digest_and_size, expert_head
from coordinator.rounds import store as rounds
from coordinator.storage import event_log
from schemas.messages.experts import ExpertManifest
from schemas.wire.digests import digest_of
from schemas.wire.envelope import slots, unpack
from tests.coordinator.rows import federation_row

LAYOUT = {"l0.q.A": (2, 3), "l0.q.B": (4, 2)}


def test_head_and_values_are_a_body_of_the_expert() -> None:
    values = np.arange(14, dtype="<f4").tobytes()
    beginning = expert_head("fed_bank", 3, 7, LAYOUT)
    body = beginning + values
    assert digest_and_size(beginning, [values[:5], values[5:]]) == (digest_of(body), len(body))
    with unpack(body, encoding=None, expected=slots(LAYOUT), max_bytes=10_000) as envelope:
        manifest = envelope.manifest(ExpertManifest)
        assert (manifest.federation, manifest.expert, manifest.round) == ("fed_bank", 3, 7)
        np.testing.assert_array_equal(envelope.read("l0.q.B").ravel(), np.arange(6, 14))


def test_each_change_of_a_bank_is_an_event(sqlite_database: Database) -> None:
    change = Event("born", 7, 8, "5 of 15 members fit no expert", {"rejects": 5, "members": 15}, peer=0)
    with sqlite_database.write() as session:
        now = database_time(session)
        session.add(federation_row("fed_bank", now))
        session.flush()
        row = rounds.open_round(session, "fed_bank", 7, now)
        announce(session, "fed_bank", row, [change])
        announce(session, "fed_bank", row, [])
        stored = event_log.since(session, "fed_bank", 0, client_id="cli_any")
        (event,) = [event for event in stored if event.kind == "expert"]
    assert event.data == {
        "change": "born",
        "round": 7,
        "expert": 8,
        "peer": 0,
        "reason": "5 of 15 members fit no expert",
        "numbers": {"rejects": 5.0, "members": 15.0},
    }
