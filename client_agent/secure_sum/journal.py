"""A member's journal of one round's sums: a sent message is sent again byte for byte, or not at all.

    terms-001.json       the terms of session 1, kept as evidence
    counts.json          the outcome of the counts, kept as evidence
    secure/001/session.json   secrets and the digest of the input; without secrets once the session has ended
    secure/001/put-N     the exact body of step N, stored before it is sent
    secure/001/got-N     the coordinator's answer to step N, the first one that was read

Every file is durable before a message that depends on it is sent. A stored message is never made again. The
digest of the input binds it to the keys of a session, because two inputs under one set of keys would reveal
their difference. Only the owner has access to the files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from client_agent.errors import SumRefused
from client_agent.secure_sum.session_journal import SessionJournal
from client_agent.secure_sum.unmask_marks import UnmaskMarks
from client_agent.storage.files import write_durably
from client_agent.storage.round_folder import SECURE
from schemas.messages.secure_sum import SumKind, SumTerms
from schemas.messages.sum_counts import SumCounts
from schemas.secure_sum.counts import counts_digest


@dataclass(frozen=True, slots=True)
class SumJournal:
    """The sessions of one round, below the round's folder.

    `evidence` is where contradictions are stored; `marks` are the sums that this member has unmasked.
    """

    folder: Path
    evidence: Path
    marks: UnmaskMarks

    def open(self, session: int) -> SessionJournal:
        return SessionJournal(self.folder / SECURE / f"{session:03d}", self.marks)

    def keep_terms(self, terms: SumTerms) -> None:
        """Store the terms of a session as evidence.

        Raises:
            SumRefused: there are other terms of the same session; both are stored.
        """
        file = self.folder / f"terms-{terms.session:03d}.json"
        if not file.exists():
            write_durably(file, _document(terms))
            return
        stored = file.read_bytes()
        # By content: the layout of the file may differ between versions.
        if json.loads(stored) == json.loads(_document(terms)):
            return
        for document in (stored, _document(terms)):
            self._keep_evidence(document)
        raise SumRefused(
            f"there are two terms of session {terms.session} of round {terms.round}; both are stored in "
            f"{self.evidence}"
        )

    def keep_counts(self, round_number: int, counts: SumCounts) -> None:
        """Store the counts that the terms of a sum name as evidence: they are taken once in a round.

        Raises:
            SumRefused: there are other counts of the same round; both are stored.
        """
        file, document = self.folder / "counts.json", _document(counts)
        if not file.exists():
            write_durably(file, document)
            return
        stored = SumCounts.model_validate_json(file.read_bytes())
        if stored == counts:
            return
        for outcome in (stored, counts):
            digest = counts_digest(outcome).rpartition(":")[2]
            write_durably(self.evidence / f"counts-{round_number:06d}-{digest[:16]}.json", _document(outcome))
        raise SumRefused(
            f"there are two outcomes of the counts of round {round_number}; both are stored in "
            f"{self.evidence}"
        )

    def keep_refused(self, terms: SumTerms) -> Path:
        """Store terms that this member does not accept as evidence; return their file."""
        return self._keep_evidence(_document(terms))

    def spent(self, *, current: SumTerms) -> frozenset[SumKind]:
        """Return the kinds of the round's other sessions in which step 4 was stored, and perhaps sent.

        `current` are the terms of the session that does not count. Sessions whose journal was lost, as after
        a restored backup, count by their marks.
        """
        earlier = [session for session in self._sessions() if session.number != current.session]
        kinds = {kind for session in earlier for kind in session.spent_kinds}
        # The mark of this session itself must not stop it: its last message may have to be sent again.
        nonce = self.open(current.session).nonce
        return frozenset(kinds | self.marks.kinds(current.round, except_nonce=nonce))

    def end(self, *, before: int | None = None) -> None:
        """End all sessions, or those with a lower number than `before`, and delete their secrets."""
        for session in self._sessions():
            if before is None or session.number < before:
                session.end()

    def _keep_evidence(self, document: bytes) -> Path:
        fields = json.loads(document)
        name = f"terms-{fields['round']:06d}-{fields['session']:03d}-{fields['signature'][:16]}.json"
        write_durably(self.evidence / name, document)
        return self.evidence / name

    def _sessions(self) -> list[SessionJournal]:
        folder = self.folder / SECURE
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        return [session for path in paths if (session := SessionJournal(path, self.marks)).exists]


def _document(message: BaseModel) -> bytes:
    return json.dumps(message.model_dump(mode="json"), indent=1, sort_keys=True).encode()
