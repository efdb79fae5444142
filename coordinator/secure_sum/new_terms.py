"""Write the terms of a session: members and their keys, what they were served, and the summed vector."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.federations import ClientRow, FederationRow, ParticipationRow, RoundRow
from coordinator.db.tables.identity import RosterRow
from coordinator.enrolment import roster
from coordinator.experts.current_bank import CurrentBank, current_bank
from coordinator.experts.registry import is_birth_due, round_counts
from coordinator.federations.store import plan_of
from coordinator.rounds import base_weights
from coordinator.rounds.manifests import plan_bytes
from coordinator.secure_sum.counts import outcome_of
from coordinator.secure_sum.joint_digest import joint_digest
from coordinator.storage.server_key import ServerKey
from coordinator.strategies.opening import OpenedPlan, open_plan
from coordinator.totals import GroupCounts, Outline
from schemas.identity.keys import encode
from schemas.maths.adapter import Layout
from schemas.maths.bank import REJECT, bank_layout, manifest
from schemas.messages.enrolment import Profile
from schemas.messages.federations import FederationPlan
from schemas.messages.secure_sum import CAPABILITY, MOST_MEMBERS, Segment, SumKind, SumTerms
from schemas.messages.sum_counts import SumCounts
from schemas.messages.sum_plan import SecureSumPlan
from schemas.secure_sum.counts import count_segments, counts_digest
from schemas.secure_sum.encoding import modulus_for
from schemas.secure_sum.segments import segment_of, segments_of
from schemas.secure_sum.terms import signed_terms_by, threshold_for
from schemas.wire.digests import digest_of

_NONCE_BYTES = 16
_READY = (
    select(ClientRow.id, ClientRow.base_model, ClientRow.profile)
    .join(ParticipationRow, ParticipationRow.client_id == ClientRow.id)
    .where(
        ParticipationRow.round_id == bindparam("round"),
        ParticipationRow.state == "ready",
        ClientRow.state == "enrolled",
    )
    .order_by(ParticipationRow.ready_at, ClientRow.id)
)
_KEYS = (
    select(RosterRow.client_id, RosterRow.document)
    .where(RosterRow.federation_id == bindparam("federation_id"), RosterRow.version <= bindparam("version"))
    .order_by(RosterRow.version)
)


_GroupChoice = Callable[[Outline, GroupCounts, int], Collection[str]]


@dataclass(frozen=True, slots=True)
class _Vector:
    """What a session sums, and the counts that its terms name."""

    kind: SumKind
    segments: tuple[Segment, ...]
    counts: str | None = None
    lost: int = 0
    choices: int | None = None


@dataclass(frozen=True, slots=True)
class ReadyClient:
    """A client that has trained, and waits for the sum."""

    client_id: str
    base_model: str
    profile: Profile


def ready_clients(session: Session, round_id: int, *, excluded: Collection[str]) -> list[ReadyClient]:
    """Return the enrolled ready clients of a round without the `excluded` ids, the first ready first."""
    return [
        ReadyClient(client_id, base_model, Profile.model_validate(profile))
        for client_id, base_model, profile in run(session, _READY, {"round": round_id})
        if client_id not in excluded
    ]


def summed_plan(plan: FederationPlan) -> SecureSumPlan:
    """Return the plan's part about secure sums.

    Raises:
        LookupError: the plan has no secure sum.
    """
    if plan.privacy.secure_sum is None:
        raise LookupError("the plan has no privacy.secure_sum")
    return plan.privacy.secure_sum


def new_terms(
    session: Session,
    federation: FederationRow,
    row: RoundRow,
    number: int,
    clients: Sequence[ReadyClient],
    key: ServerKey,
) -> SumTerms | None:
    """Return signed terms for the first 128 of `clients`, or None if the plan requires more of them.

    A strategy with groups first counts the members of each group, once in a round: until then the terms are
    of kind `counts`. The terms of the sum then have the groups that keep at least `k_min` members even if all
    absent counted members belong to them.

    Raises:
        StrategyUnavailable: the strategy of the plan is no longer installed.
    """
    plan = plan_of(federation)
    summed = summed_plan(plan)
    link = roster.newest(session, federation.id)
    if link is None:
        return None
    keys = _keys(session, federation.id, link.version)
    # The others could not check the signatures of a client that is not in the roster.
    chosen = [client for client in clients if client.client_id in keys][:MOST_MEMBERS]
    if len(chosen) < max(summed.minimum, 2):
        return None
    opened, first = open_plan(plan), chosen[0]
    layout = base_weights.layout(session, federation.id, opened, first.base_model, first.profile)
    names = sorted(client.client_id for client in chosen)
    bank = current_bank(session, federation.id, opened)
    choose = _group_choice(opened, bank, row.number)
    full_layout = bank_layout(layout, bank.experts) if bank is not None else layout
    vector = _vector(opened, full_layout, summed, outcome_of(session, row.id), len(names), choose)
    fields = {
        "format": CAPABILITY,
        "federation": federation.id,
        "round": row.number,
        "session": number,
        "kind": vector.kind,
        "masking": summed.masking,
        "nonce": encode(secrets.token_bytes(_NONCE_BYTES)),
        "members": [{"client": name, "key": keys[name]} for name in names],
        "threshold": threshold_for(len(names)),
        "minimum": summed.minimum,
        "roster_version": link.version,
        "roster_hash": link.hash,
        "plan": digest_of(plan_bytes(federation.plan)),
        "weights": joint_digest(session, federation.id, row.number),
        "segments": [segment.model_dump() for segment in vector.segments],
        "bits": summed.bits,
        "modulus": modulus_for(len(names), summed.bits).bits,
        "counts": vector.counts,
        "lost": vector.lost,
        "choices": vector.choices,
        "phase_seconds": summed.phase_seconds,
    }
    return signed_terms_by(fields, key.sign)


def _vector(
    opened: OpenedPlan,
    layout: Layout,
    summed: SecureSumPlan,
    counts: SumCounts | None,
    members: int,
    choose: _GroupChoice,
) -> _Vector:
    """Return what a session of `members` sums, after the round's counts or before them."""
    outline = Outline(tuple(sorted({segment_of(tensor) for tensor in layout})))
    groups = opened.options.counts(outline.segments)
    if not groups:
        return _Vector("sum", segments_of(opened.plan, layout))
    if counts is None:
        return _Vector("counts", count_segments(groups), choices=opened.options.choices)
    lost = counts.members - members
    present = manifest(counts.groups, counts.members, lost, summed.k_min)
    chosen = present & set(choose(outline, GroupCounts(counts.members, counts.groups), lost))
    return _Vector("sum", segments_of(opened.plan, layout, chosen), counts_digest(counts), lost)


def _group_choice(opened: OpenedPlan, bank: CurrentBank | None, number: int) -> _GroupChoice:
    """Return which counted groups the sum of a round is to have: `reject` only if a birth is due."""

    def choose(outline: Outline, counted: GroupCounts, lost: int) -> Collection[str]:
        groups = set(opened.strategy.groups(outline, counted))
        if bank is None:
            return groups
        counts = round_counts(counted)
        is_due = is_birth_due(bank.bank, bank.rules, counts, lost, number)
        return groups if is_due else groups - {REJECT}

    return choose


def _keys(session: Session, federation_id: str, version: int) -> dict[str, str]:
    """Return the identity key of each client by the roster up to a version; revoked clients have none."""
    keys: dict[str, str] = {}
    for client_id, document in run(session, _KEYS, {"federation_id": federation_id, "version": version}):
        # Entries come in order: the last one of a client decides.
        keys.pop(client_id, None)
        if document["public_key"] is not None:
            keys[client_id] = document["public_key"]
    return keys
