"""Read the last update and sketch of every client for aggregation; write the relevance of a round."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from coordinator.aggregation.part import EstablishedClient, SettledWeights, StoredState
from coordinator.db.tables.alignment import PackRow
from coordinator.db.tables.federations import ClientRow, RelevanceRow, SignatureRow, UpdateRow
from coordinator.federations.store import shares_across
from coordinator.rounds import base_weights
from coordinator.strategies.base import ClientFacts, Sketch, modules_of
from coordinator.strategies.opening import OpenedPlan
from schemas.maths.adapter import at_rank
from schemas.messages.federations import FederationPlan
from schemas.messages.updates import WeightsManifest
from schemas.wire.header import read_own_head


def established(
    session: Session, federation_id: str, opened: OpenedPlan, round_number: int
) -> list[EstablishedClient]:
    """Return each client's last accepted update up to this round, with its sketch.

    Raises:
        LookupError: the state of one was deleted.
    """
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
        # The update of a revoked client counts in its own round only.
        .where(or_(ClientRow.state == "enrolled", UpdateRow.round_number == round_number))
        .order_by(UpdateRow.client_id)
    )
    return [
        _established(opened, round_number, update, client, sketch, _set_in_use(pack, opened.plan))
        for update, client, sketch, pack in rows
    ]


def last_served(session: Session, clients: Collection[str], until: int) -> dict[str, StoredState]:
    """Return the last weights that these clients were served, for round `until` or before.

    Raises:
        LookupError: those of one were deleted.
    """
    states, served_weights = {}, base_weights.newest_of_each(session, clients, until)
    for client in clients:
        served = served_weights.get(client)
        if served is None or served.payload_id is None or served.head is None:
            raise LookupError(f"the weights of {client} for round {until} were deleted by retention")
        states[client] = StoredState(served.payload_id, served.begin, read_own_head(served.head)[0])
    return states


def sketch_model(plan: FederationPlan, base_model: str) -> str:
    """Return the model that makes a client's sketch; sketches of different models are not comparable."""
    pivot = plan.alignment.pivot if plan.alignment is not None else None
    return plan.signature.model or pivot or base_model


def alignment_set(session: Session, federation_id: str, plan: FederationPlan, base_model: str) -> str | None:
    """Return the alignment set in which a base model shares with others; None = it does not."""
    return _set_in_use(
        session.scalar(
            select(PackRow).where(PackRow.federation_id == federation_id, PackRow.base_model == base_model)
        ),
        plan,
    )


def sketch_of_join(session: Session, federation_id: str, client_id: str) -> Sketch | None:
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
    return _sketch(row)


def organisation(session: Session, client_id: str) -> str | None:
    return session.scalars(select(ClientRow.organisation).where(ClientRow.id == client_id)).one()


def store_relevance(session: Session, round_id: int, settled: SettledWeights) -> None:
    weighing, report = settled.weighing, settled.report
    for i, facts in enumerate(weighing.cohort.clients):
        session.add(
            RelevanceRow(
                round_id=round_id,
                client_id=facts.client,
                ordinal=i,
                relevance=weighing.relevance[i].astype("<f8").tobytes(),
                similarity=weighing.similarity[i].astype("<f8").tobytes(),
                entropy=float(weighing.entropy[i]),
                served=report.served[i].astype("<f8").tobytes() if report is not None else None,
                agreement=report.agreement[i].astype("<f8").tobytes() if report is not None else None,
                held=report.reductions[i].tobytes() if report is not None else None,
            )
        )


def _set_in_use(pack: PackRow | None, plan: FederationPlan) -> str | None:
    """Return the set of a pack; None if its test failed, or is required, when P and Q are not comparable."""
    if pack is None or plan.alignment is None or not shares_across(pack, plan.alignment):
        return None
    return pack.alignment_set


def _sketch(row: SignatureRow | None) -> Sketch | None:
    if row is None:
        return None
    return Sketch(np.frombuffer(row.vector, "<f4"), row.reliability, row.epsilon)


def _established(
    opened: OpenedPlan,
    round_number: int,
    update: UpdateRow,
    client: ClientRow,
    sketch: SignatureRow | None,
    aligned: str | None,
) -> EstablishedClient:
    plan = opened.plan
    layout = {str(name): tuple(int(extent) for extent in shape) for name, shape in update.layout}
    # 0 is this round; a newcomer, which has no update, gets None elsewhere.
    age = round_number - update.round_number
    if update.state_payload_id is None or update.payload_id is None:
        raise LookupError(f"the last update of {client.id} was deleted by retention")
    model, client_sketch = sketch_model(plan, client.base_model), _sketch(sketch)
    # Mixed ranks are compared at the largest one.
    compared = at_rank(layout, plan.adapter.rank) if opened.options.mixed_ranks else layout
    return EstablishedClient(
        facts=ClientFacts(
            client=client.id,
            base_model=client.base_model,
            alignment_set=aligned,
            modules=modules_of(compared),
            age=age,
            examples=min(update.examples, plan.limits.max_examples),
            sketch=client_sketch,
            sketch_model=model,
            is_source=age <= plan.rounds.max_staleness,
            organisation=client.organisation,
        ),
        state=StoredState(update.state_payload_id, update.state_begin, layout),
        compared=compared,
        manifest=WeightsManifest(
            federation=update.federation_id,
            recipe={},
            round=round_number + 1,
            client=client.id,
            pack=update.pack_digest,
        ),
        is_enrolled=client.state == "enrolled",
        received=(update.payload_id, update.bytes),
    )
