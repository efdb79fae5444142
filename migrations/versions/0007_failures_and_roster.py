"""Failed enrolments, counted by all replicas together; and clients from before the roster, written into it.

Revision: 0007, after 0006. A client that enrolled before 0006 has no key: its link says so, dated now. What
is appended to a roster stays in it, so going back leaves the links.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_CLIENTS = sa.table(
    "clients",
    *(sa.column(name) for name in ("id", "federation_id", "name", "organisation", "state")),
)
_FEDERATIONS = sa.table("federations", sa.column("id"))
_ROSTER = sa.table(
    "roster",
    sa.column("federation_id"),
    sa.column("version", sa.Integer()),
    sa.column("client_id"),
    sa.column("at", _TIME),
    sa.column("document", sa.JSON()),
    sa.column("hash"),
)


def upgrade() -> None:
    op.create_table(
        "failed_enrolments",
        sa.Column("origin", sa.String(length=200), nullable=False),
        sa.Column("failed_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("origin", "failed_at", name=op.f("pk_failed_enrolments")),
    )
    op.create_index(op.f("ix_failed_enrolments_failed_at"), "failed_enrolments", ["failed_at"])
    listed = sa.select(_ROSTER.c.client_id)
    missing = sa.select(_CLIENTS).where(_CLIENTS.c.id.not_in(listed)).order_by(_CLIENTS.c.id)
    lock = sa.select(_FEDERATIONS.c.id).order_by(_FEDERATIONS.c.id).with_for_update()
    op.get_bind().execute(lock).all()  # whoever appends to a roster holds its federation's row
    for client in op.get_bind().execute(missing).all():
        _append(client, "enrolled")
        if client.state == "revoked":
            _append(client, "revoked")


def downgrade() -> None:
    op.drop_table("failed_enrolments")


def _append(client: sa.Row[Any], event: str) -> None:
    """Write a link after the federation's last one, as the coordinator does."""
    bind, moment = op.get_bind(), datetime.now(UTC)
    last = bind.execute(
        sa.select(_ROSTER.c.version, _ROSTER.c.hash)
        .where(_ROSTER.c.federation_id == client.federation_id)
        .order_by(_ROSTER.c.version.desc())
        .limit(1)
    ).first()
    document = {
        "federation": client.federation_id,
        "version": last.version + 1 if last is not None else 1,
        "event": event,
        "client": client.id,
        "name": client.name,
        "organisation": client.organisation,
        "public_key": None,
        "endorsement": None,
        "at": moment.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "previous": last.hash if last is not None else None,
    }
    said = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    bind.execute(
        _ROSTER.insert().values(
            federation_id=client.federation_id,
            version=document["version"],
            client_id=client.id,
            at=moment,
            document=document,
            hash=f"sha256:{hashlib.sha256(said).hexdigest()}",
        )
    )
