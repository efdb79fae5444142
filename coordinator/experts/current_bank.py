"""The bank of a federation as its next round begins: active experts, their revisions, and its index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.secure_sum import JointModelRow
from coordinator.experts import store
from coordinator.experts.bank import Bank, begun_anew, new_bank
from coordinator.experts.store import Revision
from coordinator.strategies.bank_rules import Rules
from coordinator.strategies.opening import OpenedPlan
from schemas.maths.bank import exploring_rounds
from schemas.messages.updates import BankIndex, ExpertReference

_VOID_UNTIL = select(func.max(JointModelRow.round_number)).where(
    JointModelRow.federation_id == bindparam("federation_id"), JointModelRow.is_void
)
_ALL_ROUNDS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CurrentBank:
    """A bank after the last summed round, with the rules by which the next one changes it."""

    bank: Bank
    rules: Rules
    revisions: Mapping[int, Revision]
    since: int = 0

    @property
    def experts(self) -> tuple[int, ...]:
        """The ordinals of the active specialists, in order."""
        return tuple(expert.expert for expert in self.bank.active)

    @property
    def index(self) -> BankIndex:
        """The index that clients are served beside the shared expert."""
        return index_of(self.bank, self.revisions, self.since)


def index_of(bank: Bank, revisions: Mapping[int, Revision], since: int) -> BankIndex:
    """Return the index of a bank's active experts; one without a revision is drawn from the plan's seed."""
    entries = []
    for expert in bank.active:
        revision = revisions.get(expert.expert)
        entries.append(
            ExpertReference(
                expert=expert.expert,
                revision=revision.round_number if revision is not None else 0,
                digest=revision.digest if revision is not None else None,
                bytes=revision.bytes if revision is not None else 0,
                prior=min(1.0, expert.prior),
            )
        )
    return BankIndex(experts=entries, since=since)


def current_bank(session: Session, federation_id: str, opened: OpenedPlan) -> CurrentBank | None:
    """Return the bank of a federation; None = its strategy has none. Before the first sum it is a new one.

    After an alignment pack was voided, the active experts begin anew, and clients explore them again.

    Raises:
        LookupError: retention has deleted the payload of a revision.
    """
    plan = opened.strategy.bank
    if plan is None:
        return None
    summed = opened.plan.privacy.secure_sum
    rules = replace(plan.rules, k_min=summed.k_min) if summed is not None else plan.rules
    bank = store.load(session, federation_id)
    void_until = run(session, _VOID_UNTIL, {"federation_id": federation_id}).scalar() or 0
    explore = exploring_rounds(plan.explore_rounds, opened.plan.rounds.total - void_until)
    if bank is None:
        bank = new_bank(plan.experts, rules, void_until + explore)
    elif store.last_round(session, federation_id) <= void_until:
        bank = begun_anew(bank, rules, void_until + explore)
    revisions = store.revisions(session, federation_id, _ALL_ROUNDS)
    # P and Q of earlier revisions belong to the frames of the voided pack, like the joint model of that
    # time.
    valid = {expert: revision for expert, revision in revisions.items() if revision.round_number > void_until}
    return CurrentBank(bank, rules, valid, void_until)


def current_index(session: Session, federation_id: str, opened: OpenedPlan) -> BankIndex | None:
    """Return the index of a federation's bank; None = its strategy has none."""
    bank = current_bank(session, federation_id, opened)
    return bank.index if bank is not None else None
