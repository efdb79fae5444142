"""Reserve the names in use, so that no two new ones can be taken for each other.

Revision: 0020, after 0019. Names that resemble each other already stay as they are; the first has the keys,
and `tessera migrate` reports the others.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

from schemas.names.spelling import name_keys, normal_name

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_CLIENTS = sa.table(
    "clients",
    *(sa.column(name) for name in ("id", "federation_id", "name", "organisation", "organisation_key")),
    sa.column("enrolled_at"),
)
_TOKENS = sa.table(
    "enrolment_tokens",
    *(sa.column(name) for name in ("id", "federation_id", "client_name", "organisation", "used_at")),
)
_FEDERATIONS = sa.table("federations", *(sa.column(name) for name in ("id", "name")))
_PEOPLE = sa.table("person_tokens", *(sa.column(name) for name in ("id", "name", "revoked_at")))
_KEYS = sa.table("name_keys", *(sa.column(name) for name in ("scope", "kind", "key", "name")))
_BATCH = 1000

Reserved = dict[tuple[str, str, str], str]
"""The first spelling of each name by scope, kind and key."""


def upgrade() -> None:
    op.create_table(
        "name_keys",
        sa.Column("scope", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=200), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("scope", "kind", "key", name=op.f("pk_name_keys")),
    )
    with op.batch_alter_table("clients") as table:
        table.add_column(sa.Column("organisation_key", sa.String(length=200), nullable=True))
    reserved: Reserved = {}
    for scope, kind, name in _names():
        keys = [(scope, kind, key) for key in sorted(name_keys(name))]
        spelling = next((reserved[key] for key in keys if key in reserved), normal_name(name))
        for key in keys:
            reserved.setdefault(key, spelling)
    rows = [
        {"scope": scope, "kind": kind, "key": key, "name": name}
        for (scope, kind, key), name in reserved.items()
    ]
    for begin in range(0, len(rows), _BATCH):
        op.get_bind().execute(sa.insert(_KEYS), rows[begin : begin + _BATCH])
    _set_organisation_keys(reserved)


def _names() -> Iterator[tuple[str, str, str]]:
    """Yield scope, kind and name: oldest first, clients before unused tokens."""
    bind = op.get_bind()
    for (name,) in bind.execute(sa.select(_FEDERATIONS.c.name).order_by(_FEDERATIONS.c.id)):
        yield "", "federation", name
    valid = _PEOPLE.c.revoked_at.is_(None)
    for (name,) in bind.execute(sa.select(_PEOPLE.c.name).where(valid).order_by(_PEOPLE.c.id)):
        yield "", "person", name
    clients = sa.select(_CLIENTS.c.federation_id, _CLIENTS.c.name, _CLIENTS.c.organisation)
    tokens = sa.select(_TOKENS.c.federation_id, _TOKENS.c.client_name, _TOKENS.c.organisation)
    for query in (
        clients.order_by(_CLIENTS.c.enrolled_at, _CLIENTS.c.id),
        tokens.where(_TOKENS.c.used_at.is_(None)).order_by(_TOKENS.c.id),
    ):
        for federation_id, name, organisation in bind.execute(query):
            yield federation_id, "client", name
            if organisation is not None:
                yield federation_id, "organisation", organisation


def _set_organisation_keys(reserved: Reserved) -> None:
    bind = op.get_bind()
    columns = _CLIENTS.c.federation_id, _CLIENTS.c.organisation
    pairs = bind.execute(sa.select(*columns).where(_CLIENTS.c.organisation.is_not(None)).distinct()).all()
    for federation_id, organisation in pairs:
        first = min(reserved[federation_id, "organisation", key] for key in name_keys(organisation))
        own = (_CLIENTS.c.federation_id == federation_id, _CLIENTS.c.organisation == organisation)
        bind.execute(sa.update(_CLIENTS).where(*own).values(organisation_key=first))


def downgrade() -> None:
    with op.batch_alter_table("clients") as table:
        table.drop_column("organisation_key")
    op.drop_table("name_keys")
