"""The digest of the values that all clients of a round begin with."""

from __future__ import annotations

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from coordinator.db.engine import run
from coordinator.db.tables.federations import ClientRow, ParticipationRow, RoundRow
from coordinator.db.tables.secure_sum import JointModelRow
from coordinator.errors import NotFound
from coordinator.experts.current_bank import current_index
from coordinator.federations.store import plan
from coordinator.rounds import base_weights
from coordinator.strategies.opening import OpenedPlan, open_plan
from schemas.messages.enrolment import Profile
from schemas.messages.updates import WeightsManifest
from schemas.secure_sum.segments import bank_digest

_LAST = (
    select(JointModelRow.digest)
    .where(
        JointModelRow.federation_id == bindparam("federation_id"),
        JointModelRow.round_number < bindparam("number"),
        ~JointModelRow.is_void,
    )
    .order_by(JointModelRow.round_number.desc())
    .limit(1)
)
_FIRST_CLIENT = (
    select(ClientRow.base_model, ClientRow.profile)
    .join(ParticipationRow, ParticipationRow.client_id == ClientRow.id)
    .join(RoundRow, RoundRow.id == ParticipationRow.round_id)
    .where(
        RoundRow.federation_id == bindparam("federation_id"),
        RoundRow.number == bindparam("number"),
        ClientRow.state == "enrolled",
    )
    .order_by(ClientRow.id)
    .limit(1)
)


def joint_digest(session: Session, federation_id: str, round_number: int) -> str:
    """Return the digest of what every client of a round is served: `values_digest`, with its experts if any.

    Publishing a summed round stores its values as a `JointModelRow` with this digest, and assigns them to
    every client that begins a later round. Before the first one, clients are served zeros in the layout of
    their base model: zeros as sent, which stand for the seeded start (`schemas.maths.start`). All clients of
    a sum have one layout, so that of the round's first enrolled client counts.

    Raises:
        NotFound: no model was published before the round, and nobody has joined it.
    """
    opened = open_plan(plan(session, federation_id))
    values = _values_digest(session, federation_id, round_number, opened)
    return bank_digest(values, current_index(session, federation_id, opened))


def _values_digest(session: Session, federation_id: str, round_number: int, opened: OpenedPlan) -> str:
    parameters = {"federation_id": federation_id, "number": round_number}
    stored = run(session, _LAST, parameters).scalar()
    if stored is not None:
        return stored
    # All clients of a sum have one layout, so that any of them will do.
    client = run(session, _FIRST_CLIENT, parameters).first()
    if client is None:
        raise NotFound
    profile = Profile.model_validate(client.profile)
    layout = base_weights.layout(session, federation_id, opened, client.base_model, profile)
    manifest = WeightsManifest(federation=federation_id, recipe={}, round=round_number, client="", pack=None)
    return base_weights.zeros(layout, manifest)[1].digest
