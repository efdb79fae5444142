"""The journal of one session of a member: its secrets, the bodies that it sent, the answers that it read."""

from __future__ import annotations

import secrets as random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from client_agent.secure_sum.member import MemberSecrets, OwnShares
from client_agent.secure_sum.unmask_marks import ALL_KINDS, UnmaskMarks
from client_agent.storage.files import fsync_folder, make_folder, write_durably
from schemas.identity.keys import decode, encode
from schemas.messages.base import Digest, Strict
from schemas.messages.secure_sum import SharesStep, SumKind, SumTerms
from schemas.secure_sum.agreement import SecretKey
from schemas.secure_sum.errors import SessionAborted
from schemas.secure_sum.terms import terms_hash

_SESSION = "session.json"
_OWN_SHARES = "own-shares.json"
_UNMASK = 4


class _Secrets(Strict):
    """`MemberSecrets` in base64url."""

    channel: str
    mask: str
    seed: str


class _SessionState(Strict):
    """The state of a session: `secrets` is null once it has ended.

    `spent`: step 4 was stored, and perhaps sent. `counted`: the clients of U3, confirmed by step 3, if the
    session takes counts, and `commitments` those to the sums of their counts, by group. `reason`: why this
    member left the session. `nonce` tells these secrets from others for the same terms.
    """

    kind: SumKind
    terms: Digest
    input: Digest
    secrets: _Secrets | None
    ended: bool = False
    spent: bool = False
    counted: list[str] | None = None
    commitments: dict[str, str] | None = None
    reason: str | None = None
    nonce: str = ""


class _OwnShares(Strict):
    """The body of step 1, and the shares of its own secrets that a member keeps."""

    step: SharesStep
    mask_share: str
    seed_share: str


@dataclass(frozen=True, slots=True)
class SessionJournal:
    """One session of a member."""

    folder: Path
    marks: UnmaskMarks

    @property
    def number(self) -> int:
        return int(self.folder.name)

    @property
    def exists(self) -> bool:
        return (self.folder / _SESSION).is_file()

    @property
    def spent_kinds(self) -> tuple[SumKind, ...]:
        """The kinds of sums in which this member takes no part any more; all, if the file is damaged."""
        state = self._state()
        if state is None:
            # A damaged file may have been that of a spent session.
            return ALL_KINDS
        return (state.kind,) if state.spent or self.has_sent(_UNMASK) else ()

    @property
    def nonce(self) -> str | None:
        """The random name that tells these secrets from others for equal terms; None if it is unreadable."""
        state = self._state()
        return None if state is None else state.nonce

    @property
    def ended(self) -> str | None:
        """The reason why the session has ended for this member; None while it is in progress."""
        state = self._state()
        if state is None:
            return f"{self.folder / _SESSION} is damaged"
        return (state.reason or "the session is over") if state.ended else None

    @property
    def counted(self) -> tuple[str, ...] | None:
        """The clients that this member confirmed as counted in this session; None if it did not."""
        state = self._state()
        return tuple(state.counted) if state is not None and state.counted is not None else None

    @property
    def commitments(self) -> dict[str, str] | None:
        """The commitments to the counts that this member confirmed, by group; None if it did not."""
        state = self._state()
        return state.commitments if state is not None else None

    def begin(self, terms: SumTerms, input_digest: str, secrets: MemberSecrets | None) -> None:
        """Store the secrets of a session before anything is sent; `masking: none` has none."""
        raw = None
        if secrets is not None:
            raw = _Secrets(
                channel=encode(secrets.channel.raw), mask=encode(secrets.mask.raw), seed=encode(secrets.seed)
            )
        # Durable before the secrets: an entry without its folder would be lost, and keys drawn twice.
        make_folder(self.folder)
        fields = {"kind": terms.kind, "terms": terms_hash(terms), "input": input_digest, "secrets": raw}
        self._write(_SessionState.model_validate({**fields, "nonce": random.token_hex(16)}))

    def secrets(self, terms: SumTerms, input_digest: str) -> MemberSecrets:
        """Return the secrets of a session, for the terms and the input that they were made for.

        Raises:
            SessionAborted: the session has ended here, or is of other terms or of another input.
        """
        state = self.require(terms, input_digest)
        if state.secrets is None:
            raise SessionAborted("the secrets of this session are deleted")
        return MemberSecrets(
            SecretKey(decode(state.secrets.channel)),
            SecretKey(decode(state.secrets.mask)),
            decode(state.secrets.seed),
        )

    def require(self, terms: SumTerms, input_digest: str) -> _SessionState:
        """Check that a session is in progress, with these terms and this input.

        Raises:
            SessionAborted: it has ended here, or is of other terms or of another input.
        """
        state = self._state()
        if state is None or state.ended:
            raise SessionAborted(self.ended or "the session is over")
        if state.terms != terms_hash(terms):
            raise SessionAborted("the journal of this session is of other terms")
        if state.input != input_digest:
            raise SessionAborted("the input differs from the one that the keys of this session were made for")
        return state

    def has_sent(self, step: int) -> bool:
        """Whether the body of a step is stored; it may have been sent."""
        return self._put(step).is_file()

    def sent(self, step: int) -> bytes:
        return self._put(step).read_bytes()

    def store_sent(self, step: int, body: bytes) -> None:
        """Store the body of a step before it is sent for the first time.

        Raises:
            SessionAborted: another body is stored.
        """
        if self.has_sent(step):
            if self.sent(step) != body:
                raise SessionAborted(f"another message of step {step} was sent before")
            return
        write_durably(self._put(step), body)

    def store_counted(self, clients: Sequence[str], commitments: Mapping[str, str]) -> None:
        """Store who is counted, and the commitments to the sums of the counts, before both are confirmed.

        Raises:
            SessionAborted: the journal is damaged.
        """
        state = self._state()
        if state is None:
            raise SessionAborted(f"{self.folder / _SESSION} is damaged")
        self._write(state.model_copy(update={"counted": list(clients), "commitments": dict(commitments)}))

    def store_unmask(self, terms: SumTerms, body: bytes) -> None:
        """Mark the round as unmasked, for good, and store the body of step 4.

        Raises:
            SessionAborted: another body is stored, or the journal is damaged.
        """
        state = self._state()
        if state is None:
            raise SessionAborted(f"{self.folder / _SESSION} is damaged")
        # The mark first: if the message is stored and the mark is not, a restored round could be summed
        # twice.
        self.marks.add(terms, state.nonce)
        self.store_sent(_UNMASK, body)

    def received(self, step: int) -> bytes | None:
        """Return the coordinator's answer to a step as it was first read; None before."""
        file = self.folder / f"got-{step}"
        return file.read_bytes() if file.is_file() else None

    def store_received(self, step: int, body: bytes) -> None:
        write_durably(self.folder / f"got-{step}", body)

    def store_own_shares(self, shares: OwnShares) -> None:
        stored = _OwnShares(
            step=shares.step, mask_share=encode(shares.mask_share), seed_share=encode(shares.seed_share)
        )
        write_durably(self.folder / _OWN_SHARES, stored.model_dump_json().encode())

    def own_shares(self) -> OwnShares | None:
        file = self.folder / _OWN_SHARES
        if not file.is_file():
            return None
        stored = _OwnShares.model_validate_json(file.read_bytes())
        return OwnShares(stored.step, decode(stored.mask_share), decode(stored.seed_share))

    def end(self, reason: str | None = None) -> None:
        """End the session for this member: delete its secrets and messages; `spent` stays."""
        state = self._state()
        if state is None:
            write_durably(self.folder / _SESSION, b"")  # stays damaged, and holds no secrets any more
        elif not state.ended:
            # `spent` is read before the stored messages go, of which the last one decides.
            changes = {"secrets": None, "ended": True, "spent": bool(self.spent_kinds), "reason": reason}
            self._write(state.model_copy(update=changes))
        # After the state, so that a crash in between leaves a session that has ended, with files that nothing
        # reads.
        for file in self.folder.iterdir():
            if file.name != _SESSION:
                file.unlink()
        fsync_folder(self.folder)

    def _put(self, step: int) -> Path:
        return self.folder / f"put-{step}"

    def _state(self) -> _SessionState | None:
        """Read the state; None if the file is damaged, and nothing more is sent in this session."""
        try:
            return _SessionState.model_validate_json((self.folder / _SESSION).read_bytes())
        except (OSError, ValidationError):
            return None

    def _write(self, state: _SessionState) -> None:
        write_durably(self.folder / _SESSION, state.model_dump_json().encode())
