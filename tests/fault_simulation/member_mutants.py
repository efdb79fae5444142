"""Faults planted in a member of the secure sum: in what it sends, and in what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from client_agent.rounds import summed_steps
from client_agent.rounds.sum_input import SumInput
from client_agent.secure_sum import journal as journals
from client_agent.secure_sum import session_steps
from client_agent.secure_sum.journal import SessionJournal
from client_agent.secure_sum.member import Member
from client_agent.storage.files import make_folder
from client_agent.storage.round_folder import SECURE
from schemas.identity.keys import encode
from schemas.messages.secure_sum import STEPS, SumStep, UnmaskShare, UnmaskStep


@contextmanager
def sends_both_shares() -> Iterator[None]:
    """Whoever has a member's two shares of everybody can open every input."""
    unmask = Member.unmask

    def everything(self: Member, answer: Any, shared: Any, masked: Any) -> UnmaskStep:
        step = unmask(self, answer, shared, masked)
        others = [
            UnmaskShare(position=share.position, of="s" if share.of == "b" else "b", share=share.share)
            for share in step.shares
        ]
        return UnmaskStep(shares=[*step.shares, *others])

    with patch.object(Member, "unmask", everything):
        yield


@contextmanager
def rounds_its_input_again() -> Iterator[None]:
    """After a crash or a lost answer, another input is masked by the same keys."""
    message, require, read = session_steps._MaskedSteps.message, SessionJournal.require, summed_steps._input

    def anew(work: Any) -> SumInput:
        if not any(work.folder.path.glob(f"{SECURE}/*/put-{STEPS.index('masked')}")):
            return read(work)
        return SumInput.from_bytes(summed_steps.encode_input(work), summed_steps._segments(work))

    def masks_anew(self: Any, step: SumStep) -> bytes:
        if step == "masked":
            self.journal._put(STEPS.index(step)).unlink(missing_ok=True)
        return message(self, step)

    def careless(self: SessionJournal, terms: Any, _: str) -> Any:
        state = self._state()
        return require(self, terms, state.input if state is not None else "")

    with (
        patch.object(summed_steps, "_input", anew),
        patch.object(session_steps._MaskedSteps, "message", masks_anew),
        patch.object(SessionJournal, "require", careless),
    ):
        yield


@contextmanager
def does_not_sync_its_sums() -> Iterator[None]:
    """What was sent is in the journal, until the power goes."""

    def write(path: Path, content: bytes) -> None:
        make_folder(path.parent)
        path.write_bytes(content)

    with (
        patch.object(journals, "write_durably", write),
        patch.object(journals, "fsync_folder", lambda _: None),
    ):
        yield


@contextmanager
def unmasks_unconfirmed() -> Iterator[None]:
    """A member reveals its shares whoever has confirmed which sets."""

    def unmask(self: Member, answer: Any, shared: Any, masked: Any) -> UnmaskStep:
        held = {"b": shared.seed_shares, "s": shared.mask_shares}
        kinds = {peer: "b" if peer in masked else "s" for peer in sorted(shared.commitments)}
        shares = [{"position": peer, "of": of, "share": encode(held[of][peer])} for peer, of in kinds.items()]
        return UnmaskStep.model_validate({"shares": shares})

    with patch.object(Member, "unmask", unmask):
        yield
