"""The journal of a sum: crashed members repeat the same bytes or none, and secrets are deleted."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_agent.errors import SumRefused
from client_agent.secure_sum.member import new_secrets
from client_agent.storage.archive import delete_secrets, move_aside
from schemas.secure_sum.errors import SessionAborted
from tests.scene.faults import Killed
from tests.scene.secure_sums import terms_of
from tests.unit.client_agent.secure_sum.memory_server import (
    DrivenMember,
    MemoryCalls,
    MemoryServer,
    expected_sum,
    members_of,
    run_all,
    run_until_left,
)

DIGEST, OTHER = (f"sha256:{digit * 64}" for digit in "01")


class DyingDisk:
    """Counts calls of fsync, and dies at one of them, before or after it took effect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.at, self.after = 0, 0, False
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, descriptor: int) -> None:
        self.calls += 1
        if self.calls == self.at and not self.after:
            raise Killed
        self._fsync(descriptor)
        if self.calls == self.at:
            raise Killed


def distinct_bodies(server: MemoryServer) -> dict[tuple[int, int, int], set[bytes]]:
    bodies: dict[tuple[int, int, int], set[bytes]] = {}
    for session, position, step, body in server.log:
        bodies.setdefault((session, position, step), set()).add(body)
    return bodies


def test_secrets_are_deleted_after_a_sum(tmp_path: Path) -> None:
    members = members_of(tmp_path, 3)
    assert not run_all(members)
    for member in members:
        names = sorted(path.name for path in (member.folder / "secure" / "001").iterdir())
        assert names == ["session.json"]
        session = member.journal.open(1)
        assert session.ended
        assert '"secrets":null' in (session.folder / "session.json").read_text()
        assert member.journal.spent(current=terms_of(3, session=2)) == {"sum"}
        assert (member.folder / "terms-001.json").is_file()


def _crashing_run(folder: Path, monkeypatch: pytest.MonkeyPatch, at: int, *, after: bool) -> int:
    """Run 3 members; the first one crashes at a call of fsync and is run again. Return its calls."""
    members = members_of(folder, 3)
    server = members[0].calls.server
    victim, others = members[0], members[1:]
    started = [threading.Thread(target=member.run, daemon=True) for member in others]
    disk = DyingDisk(monkeypatch)
    owner = threading.get_ident()
    counted = disk.__call__

    def fail_for_victim(descriptor: int) -> None:
        if threading.get_ident() == owner:
            counted(descriptor)
        else:
            disk._fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_victim)
    disk.at, disk.after = at, after
    for thread in started:
        thread.start()
    try:
        victim.run()
    except Killed:
        victim.run()
    for thread in started:
        thread.join(timeout=30)
        assert not thread.is_alive()
    monkeypatch.undo()
    assert all(len(bodies) == 1 for bodies in distinct_bodies(server).values())
    assert server.total is not None
    assert np.array_equal(server.total, expected_sum(members))
    assert not any("put-" in path.name for path in folder.rglob("*"))
    return disk.calls


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_crash_at_any_fsync_repeats_the_same_bytes(
    after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = _crashing_run(tmp_path / "0", monkeypatch, 0, after=after)
    assert total > 20
    for at in range(1, total + 1):
        _crashing_run(tmp_path / str(at), monkeypatch, at, after=after)


def test_messages_are_stored_before_they_are_sent(tmp_path: Path) -> None:
    members = members_of(tmp_path, 3)
    for member in members:
        calls, put = member.calls, member.calls.put

        def checked(
            session: int, step: int, body: bytes, member: DrivenMember = member, put: Any = put
        ) -> None:
            journal = member.journal.open(session)
            assert journal.sent(step) == body
            assert step == 0 or journal.received(step - 1) is not None
            put(session, step, body)

        calls.put = checked  # type: ignore[method-assign]
    assert not run_all(members)


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    journal = members_of(tmp_path, 3)[0].journal
    session = journal.open(1)
    session.begin(terms_of(3), DIGEST, new_secrets())
    session.store_sent(0, b"keys")
    journal.keep_terms(terms_of(3))
    for path in journal.folder.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_other_input_under_the_same_keys_is_refused(tmp_path: Path) -> None:
    members = members_of(tmp_path, 3)
    member = members[0]
    member.calls.stop_before = 2  # it has keys and shares, and has stored its masked vector
    for peer in members[1:]:
        peer.calls.stop_before = 2
    assert len(run_all(members)) == 3
    masked = member.journal.open(1).sent(2)
    with pytest.raises(SessionAborted, match="another message"):
        member.journal.open(1).store_sent(2, b"\x00" * len(masked))
    for peer in members:
        peer.calls.stop_before = 9
    member.values = member.values + 1  # training was repeated, or the input was rounded anew
    member.input_digest = OTHER
    server = member.calls.server
    server.missing = {0: 2}
    run_until_left(member)
    assert all(body == masked for session, place, step, body in server.log if (place, step) == (0, 2))
    assert not [entry for entry in server.log if entry[1:3] == (0, 2)]
    left = [report.reason for report in member.reports if report.reason]
    assert left
    assert "input differs" in left[0]


def test_stored_message_is_never_replaced(tmp_path: Path) -> None:
    session = members_of(tmp_path, 3)[0].journal.open(1)
    session.begin(terms_of(3), DIGEST, new_secrets())
    session.store_sent(1, b"shares")
    session.store_sent(1, b"shares")
    with pytest.raises(SessionAborted, match="another message of step 1"):
        session.store_sent(1, b"others")
    assert session.sent(1) == b"shares"


def test_contradictory_terms_of_a_session_are_evidence(tmp_path: Path) -> None:
    journal = members_of(tmp_path, 3)[0].journal
    journal.keep_terms(terms_of(3))
    journal.keep_terms(terms_of(3))
    with pytest.raises(SumRefused, match="two terms of session 1 of round 3"):
        journal.keep_terms(terms_of(3, nonce="b3RoZXI"))
    assert len(list(journal.evidence.iterdir())) == 2


def test_damaged_session_sends_no_message_and_counts_spent(tmp_path: Path) -> None:
    journal = members_of(tmp_path, 3)[0].journal
    session = journal.open(1)
    session.begin(terms_of(3), DIGEST, new_secrets())
    (session.folder / "session.json").write_bytes(b"{")
    assert journal.spent(current=terms_of(3, session=2)) == {"sum", "counts"}
    with pytest.raises(SessionAborted, match="damaged"):
        session.secrets(terms_of(3), DIGEST)
    session.end()
    assert (session.folder / "session.json").read_bytes() == b""


def test_secrets_belong_to_their_terms_and_input(tmp_path: Path) -> None:
    session = members_of(tmp_path, 3)[0].journal.open(1)
    terms, secrets = terms_of(3), new_secrets()
    session.begin(terms, DIGEST, secrets)
    assert session.secrets(terms, DIGEST) == secrets
    with pytest.raises(SessionAborted, match="input differs"):
        session.secrets(terms, OTHER)
    with pytest.raises(SessionAborted, match="other terms"):
        session.secrets(terms_of(3, nonce="b3RoZXI"), DIGEST)
    session.end("it was over")
    with pytest.raises(SessionAborted, match="it was over"):
        session.secrets(terms, DIGEST)


def test_session_without_step_4_is_not_spent(tmp_path: Path) -> None:
    journal = members_of(tmp_path, 3)[0].journal
    for number, step in ((1, 3), (2, 4)):
        session = journal.open(number)
        session.begin(terms_of(3, session=number), DIGEST, new_secrets())
        session.store_sent(step, b"{}")
    assert journal.spent(current=terms_of(3, session=9)) == {"sum"}
    assert journal.spent(current=terms_of(3, session=2)) == frozenset()
    journal.end()
    assert journal.spent(current=terms_of(3, session=9)) == {"sum"}


def test_restored_round_is_not_unmasked_again(tmp_path: Path) -> None:
    members = members_of(tmp_path, 3)
    assert not run_all(members)
    first = members[0]
    terms = first.calls.server.terms
    delete_secrets(first.folder)  # as `tessera agent accept-restored` does
    assert first.journal.spent(current=terms) == {"sum"}
    restored = MemoryServer(terms)  # the very terms of before: Ed25519 signs them with the same bytes
    first.calls = MemoryCalls(restored, 0)
    run_until_left(first)
    assert not restored.log
    left = next(report.reason for report in first.reports if report.reason)
    assert "has unmasked another session of the round" in left
    assert first.journal.spent(current=terms_of(3, round=4)) == frozenset()


def test_folders_that_are_moved_aside_carry_no_secrets(tmp_path: Path) -> None:
    rounds = tmp_path / "fed_1" / "rounds"
    journal = members_of(rounds, 3)[0].journal
    session = journal.open(1)
    session.begin(terms_of(3), DIGEST, new_secrets())
    journal.keep_terms(terms_of(3))
    move_aside(rounds)
    moved = tmp_path / "fed_1" / "earlier"
    assert list(moved.rglob("terms-001.json"))
    assert not list(moved.rglob("secure"))
    assert not list(moved.rglob("session.json"))
