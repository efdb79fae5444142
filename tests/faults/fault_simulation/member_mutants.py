"""Faults planted in a member of the secure sum: in its messages, and in its stored state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from client_agent.rounds import summed_steps
from client_agent.rounds.sum_input import SumInput
from client_agent.secure_sum import journal as journals
from client_agent.secure_sum import session_journal, session_steps
from client_agent.secure_sum.member import Member
from client_agent.secure_sum.session_journal import SessionJournal
from client_agent.storage.files import make_folder
from client_agent.storage.round_folder import SECURE
from schemas.identity.keys import encode
from schemas.messages.secure_sum import STEPS, SumStep, UnmaskShare, UnmaskStep
from tests.faults.fault_simulation.fault_rates import FaultRates, Plan
from tests.faults.fault_simulation.planting import mutant, replaces


def masked(plan: Plan, _: FaultRates) -> bool:
    return plan.summed is not None and plan.summed.masking == "pairwise"


def lied_to(plan: Plan, rates: FaultRates) -> bool:
    return masked(plan, rates) and plan.summed is not None and plan.summed.lies > 0


def _asked_again(plan: Plan, rates: FaultRates) -> bool:
    return masked(plan, rates) and rates.sum_crash > 0.1


def _power_goes(plan: Plan, rates: FaultRates) -> bool:
    return _asked_again(plan, rates) and rates.power == 1


@replaces(Member, "unmask", masked)
def sends_both_shares_of_a_member(unmask: Any, *args: Any) -> UnmaskStep:
    """A holder of both shares of all members can open every input."""
    step = unmask(*args)
    others = [
        UnmaskShare(position=share.position, of="s" if share.of == "b" else "b", share=share.share)
        for share in step.shares
    ]
    return UnmaskStep(shares=[*step.shares, *others])


@mutant(_asked_again)
@contextmanager
def rounds_its_input_again_for_a_retry() -> Iterator[None]:
    """After a crash or a lost answer, another input is masked by the same keys."""
    message, require, read = session_steps._MaskedSteps.message, SessionJournal.require, summed_steps._input

    def anew(work: Any, segments: Any = ()) -> SumInput:
        if not any(work.folder.path.glob(f"{SECURE}/*/put-{STEPS.index('masked')}")):
            return read(work, segments)
        return SumInput.from_bytes(summed_steps.encode_input(work), segments)

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


@mutant(_power_goes)
@contextmanager
def does_not_sync_its_journal_of_sums() -> Iterator[None]:
    """The journal has the sent message, unless the power fails."""

    def write(path: Path, content: bytes) -> None:
        make_folder(path.parent)
        path.write_bytes(content)

    with (
        patch.object(journals, "write_durably", write),
        patch.object(session_journal, "write_durably", write),
        patch.object(session_journal, "fsync_folder", lambda _: None),
    ):
        yield


@replaces(Member, "unmask", lied_to)
def unmasks_what_nobody_confirmed(_: Any, __: Member, ___: Any, shared: Any, summed: Any) -> UnmaskStep:
    """A member reveals its shares without checking the confirmed sets."""
    shares_by_kind = {"b": shared.seed_shares, "s": shared.mask_shares}
    kinds = {peer: "b" if peer in summed else "s" for peer in sorted(shared.commitments)}
    shares = [
        {"position": peer, "of": of, "share": encode(shares_by_kind[of][peer])} for peer, of in kinds.items()
    ]
    return UnmaskStep.model_validate({"shares": shares})
