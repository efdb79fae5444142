"""The rows that aggregation reads and writes: everybody's last state and signature, and the relevance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from coordinator.aggregation.state_reader import StoredState
from coordinator.aggregation.weighting import Weighed
from coordinator.db.tables.alignment import PackRow
from coordinator.db.tables.federations import ClientRow, RelevanceRow, SignatureRow, UpdateRow
from coordinator.rounds import base_weights
from coordinator.strategies.base import ClientFacts, Signature, modules_of
from coordinator.strategies.opening import OpenedPlan
from schemas.maths.adapter import Layout, at_rank
from schemas.messages.federations import FederationPlan
from schemas.wire.header import read_own_head


@dataclass(frozen=True, slots=True)
class Established:
    """A client with an update that counts; a revoked one serves in the round of its update, and gets none."""

    facts: ClientFacts
    state: StoredState
    pack_digest: str | None
    is_enrolled: bool


def established(
    session: Session, federation_id: str, opened: OpenedPlan, round_number: int
) -> list[Established]:
    """Return each client's last accepted update before this round, with its sketch."""
    last = (
        select(UpdateRow.client_id, func.max(UpdateRow.round_number).label("number"))
        .where(
            UpdateRow.federation_id == federation_id,
            UpdateRow.round_number <= round_number,
            UpdateRow.reject_reason.is_(None),
        )
        .group_by(UpdateRow.client_id)
        .subquery()
    )
    rows = session.execute(
        select(UpdateRow, ClientRow, SignatureRow, PackRow)
        .join(last, (last.c.client_id == UpdateRow.client_id) & (last.c.number == UpdateRow.round_number))
        .join(ClientRow, ClientRow.id == UpdateRow.client_id)
        .outerjoin(
            SignatureRow,
            (SignatureRow.round_id == UpdateRow.round_id)
            & (SignatureRow.client_id == UpdateRow.client_id)
            & (SignatureRow.origin == "update"),
        )
        .outerjoin(
            PackRow, (PackRow.federation_id == federation_id) & (PackRow.base_model == ClientRow.base_model)
        )
        .where(or_(ClientRow.state == "enrolled", UpdateRow.round_number == round_number))
        .order_by(UpdateRow.client_id)
    )
    return [
        _established(opened, round_number, update, client, signature, _set_in_use(pack))
        for update, client, signature, pack in rows
    ]


def last_served(session: Session, clients: Iterable[str], until: int) -> dict[str, StoredState]:
    """Which weights were these clients, who delivered before, given last, for round `until` or before?"""
    found = {}
    for client in clients:
        given = base_weights.newest(session, client, until)
        if given is None or given.payload_id is None or given.head is None:
            raise LookupError(f"the weights of {client} for round {until} were forgotten")
        found[client] = StoredState(given.payload_id, given.begin, read_own_head(given.head)[0])
    return found


def signature_model(plan: FederationPlan, base_model: str) -> str:
    """Which model makes a client's signature? Those of different models cannot be compared.

    Gradients come from one small model that all clients load, representations from the client's own.
    """
    if plan.signature.kind == "representation":
        return base_model
    pivot = plan.alignment.pivot if plan.alignment is not None else None
    return plan.signature.model or pivot or base_model


def alignment_set(session: Session, federation_id: str, base_model: str) -> str | None:
    """In which alignment set does a base model share? None without a pack, or when its test failed."""
    return _set_in_use(
        session.scalar(
            select(PackRow).where(PackRow.federation_id == federation_id, PackRow.base_model == base_model)
        )
    )


def signature_of_join(session: Session, federation_id: str, client_id: str) -> Signature | None:
    """Which signature did a newcomer send with its last join that had one?"""
    row = session.scalar(
        select(SignatureRow)
        .where(
            SignatureRow.federation_id == federation_id,
            SignatureRow.client_id == client_id,
            SignatureRow.origin == "join",
        )
        .order_by(SignatureRow.round_number.desc())
        .limit(1)
    )
    return _signature(row)


def organisation(session: Session, client_id: str) -> str | None:
    """Whose client is it?"""
    return session.scalars(select(ClientRow.organisation).where(ClientRow.id == client_id)).one()


def keep_relevance(session: Session, round_id: int, settled: Weighed) -> None:
    """Keep who listened to whom, and what the guard made of it."""
    asked = settled.asked
    told = settled.told
    for i, facts in enumerate(asked.cohort.clients):
        session.add(
            RelevanceRow(
                round_id=round_id,
                client_id=facts.client,
                ordinal=i,
                relevance=asked.relevance[i].astype("<f8").tobytes(),
                similarity=asked.similarity[i].astype("<f8").tobytes(),
                entropy=float(asked.entropy[i]),
                served=told.served[i].astype("<f8").tobytes() if told is not None else None,
                agreement=told.agreement[i].astype("<f8").tobytes() if told is not None else None,
                held=told.held[i].tobytes() if told is not None else None,
            )
        )


def _set_in_use(pack: PackRow | None) -> str | None:
    """Name the set of a pack, unless it failed its acceptance test: then P and Q mean nothing elsewhere."""
    if pack is None or (pack.acceptance is not None and pack.acceptance["verdict"] == "failed"):
        return None
    return pack.alignment_set


def _compared(layout: Layout, opened: OpenedPlan) -> Layout:
    """Return the shapes that clients must share: with mixed ranks, those of the largest rank."""
    return at_rank(layout, opened.plan.adapter.rank) if opened.traits.mixed_ranks else layout


def _signature(row: SignatureRow | None) -> Signature | None:
    if row is None:
        return None
    return Signature(np.frombuffer(row.vector, "<f4"), row.reliability, row.epsilon)


def _established(
    opened: OpenedPlan,
    round_number: int,
    update: UpdateRow,
    client: ClientRow,
    signature: SignatureRow | None,
    aligned: str | None,
) -> Established:
    plan = opened.plan
    layout = {str(name): tuple(int(extent) for extent in shape) for name, shape in update.layout}
    age = round_number - update.round_number
    if update.state_payload_id is None:
        raise LookupError(f"the last update of {client.id} was forgotten")
    return Established(
        facts=ClientFacts(
            client=client.id,
            base_model=client.base_model,
            alignment_set=aligned if plan.alignment is not None else None,
            modules=modules_of(_compared(layout, opened)),
            age=age,
            examples=min(update.examples, plan.limits.max_examples),
            signature=_signature(signature),
            signature_model=signature_model(plan, client.base_model),
            is_source=age <= plan.rounds.max_staleness,
            organisation=client.organisation,
        ),
        state=StoredState(update.state_payload_id, update.state_begin, layout),
        pack_digest=update.pack_digest,
        is_enrolled=client.state == "enrolled",
    )
