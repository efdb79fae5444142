from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.util import CommandError
from sqlalchemy import inspect, select, text, update

from coordinator.db import migrate
from coordinator.db.engine import Database, database_time
from coordinator.db.tables.alignment import PackRow
from coordinator.db.tables.federations import Table, WeightsRow
from coordinator.errors import SettingsUnusable
from coordinator.federations import store as federations
from coordinator.storage import payloads
from schemas.identity.documents import hash_of
from schemas.messages.enrolment import RosterEntry
from tests.coordinator.aggregation.closed_round import count, plan, publish, simple
from tests.served import PROFILE, Served, slug


@pytest.fixture
def empty(request: pytest.FixtureRequest, backend: str, tmp_path: Path) -> Iterator[Database]:
    """A database without any table."""
    if backend == "sqlite":
        database = Database(f"sqlite:///{tmp_path / 'empty.db'}")
    else:
        database = Database(request.getfixturevalue("empty_postgres_url"))
    yield database
    database.close()


def _tables(database: Database) -> set[str]:
    return set(inspect(database.engine).get_table_names())


def test_migrations_go_up_down_and_up_again(empty: Database) -> None:
    wanted = set(Table.metadata.tables)
    assert not migrate.is_current(empty)
    migrate.upgrade(empty)
    assert migrate.is_current(empty)
    assert _tables(empty) == wanted | {"alembic_version"}
    with empty.engine.begin() as connection:  # the migrations make what the tables are declared as
        command.check(migrate.config(connection=connection))
    migrate.downgrade(empty)
    assert _tables(empty) == {"alembic_version"}
    migrate.upgrade(empty)
    assert _tables(empty) == wanted | {"alembic_version"}


def test_migrating_twice_changes_nothing(database: Database) -> None:
    migrate.upgrade(database)
    assert migrate.is_current(database)


def test_a_database_of_another_version_is_not_ready_and_postgres_is_not_touched(
    database: Database, backend: str
) -> None:
    migrate.downgrade(database, to="0018")
    if backend == "sqlite":
        migrate.prepare(database)
        assert migrate.is_current(database)
    else:
        with pytest.raises(SettingsUnusable, match="tessera migrate"):
            migrate.prepare(database)


def test_weights_that_share_their_values_are_not_lost_by_going_back(database: Database) -> None:
    simple(database)
    publish(database)
    with pytest.raises(CommandError, match="3 published weights share their values"):
        migrate.downgrade(database, to="0003")
    assert migrate.is_current(database)
    assert count(database, WeightsRow) == 3
    with database.write() as session:
        session.execute(update(WeightsRow).values(head=None))
    migrate.downgrade(database, to="0003")
    with database.read() as session:
        assert session.scalar(text("SELECT count(*) FROM weights")) == 3


def test_no_byte_is_lost_where_payloads_get_ids_of_their_own(database: Database) -> None:
    simple(database)
    publish(database)

    def kept() -> list[tuple[object, ...]]:
        with database.read() as session:
            chunks = "SELECT payload_id, begin, data FROM payload_chunks ORDER BY payload_id, begin"
            rows = "SELECT id, digest, bytes FROM payloads ORDER BY id"
            return [tuple(row) for query in (chunks, rows) for row in session.execute(text(query))]

    before = kept()
    assert len(before) > 3
    migrate.downgrade(database, to="0008")
    assert kept() == before
    migrate.upgrade(database)
    assert kept() == before
    highest = max(row[0] for row in before if isinstance(row[0], int))
    with database.write() as session:
        assert payloads.store_bytes(session, b"one more")[0] > highest
        session.execute(text("DELETE FROM payloads WHERE digest IS NOT NULL AND id > :h"), {"h": highest})
    with database.write() as session:
        assert payloads.store_bytes(session, b"and another")[0] > highest + 1


def test_migrating_by_another_way_does_not_delete_what_refers_to_a_table(
    database: Database, backend: str
) -> None:
    migrate.downgrade(database, to="0008")
    if backend == "postgres":
        return
    with database.engine.begin() as connection, pytest.raises(CommandError, match="delete every chunk"):
        command.upgrade(migrate.config(connection=connection), "head")


def test_verdicts_are_forgotten_where_the_rule_changes(database: Database) -> None:
    with database.write() as session:
        payload_id, digest = payloads.store_bytes(session, b"a pack")
        pack = PackRow(
            federation_id=federations.create(session, plan()).id,
            base_model="tiny-s-0123456789ab",
            payload_id=payload_id,
            digest=digest,
            bytes=6,
            alignment_set=digest,
            selected=["b0.v"],
            errors={},
            stored_at=database_time(session),
        )
        session.add(pack)
    for move in (lambda: migrate.downgrade(database, to="0004"), lambda: migrate.upgrade(database)):
        with database.write() as session:
            session.execute(update(PackRow).values(acceptance={"verdict": "failed"}))
        move()
        with database.read() as session:
            assert session.execute(select(PackRow.acceptance, PackRow.selected)).all() == [(None, ["b0.v"])]


def test_clients_from_before_the_roster_are_written_into_it(
    serve: Callable[..., Served], database_url: str, database: Database
) -> None:
    served = serve(database_url)
    bearer = {"privacy": {"allow_bearer_clients": True, "roster_policy": "tofu"}}
    one, two = served.federation(**bearer), served.federation(**bearer)
    names: dict[str, str] = {}
    for federation_id, name in ((one, "old"), (one, "gone"), (two, "other")):
        request = {"token": served.enrolment_token(federation_id, name), "name": name, "profile": PROFILE}
        names[name] = served.http().post("/v1/enrolments", json=request).json()["client_id"]
    served.admin.delete(f"/v1/federations/{one}/clients/{names['gone']}")
    with database.write() as session:  # as it is after 0006 alone
        session.execute(text("DELETE FROM roster"))
    served.enrol(one, "new")
    migrate.downgrade(database, to="0006")
    migrate.upgrade(database)
    links = served.admin.get(f"/v1/federations/{one}/roster").json()["items"]
    told = [(link["version"], link["event"], link["name"], link["public_key"] is None) for link in links]
    assert told == [
        (1, "enrolled", "new", False),
        (2, "enrolled", "old", True),
        (3, "enrolled", "gone", True),
        (4, "revoked", "gone", True),
    ]
    assert [link["previous"] for link in links] == [None, *map(hash_of, links[:-1])]
    assert all(
        RosterEntry.model_validate_json(json.dumps(link)).model_dump(mode="json") == link for link in links
    )
    served.enrol(one, "newest")
    after = served.admin.get(f"/v1/federations/{one}/roster").json()["items"]
    assert (after[4]["name"], after[4]["previous"]) == ("newest", hash_of(links[3]))
    assert [link["name"] for link in served.admin.get(f"/v1/federations/{two}/roster").json()["items"]] == [
        "other"
    ]


def test_a_running_service_says_when_its_tables_are_gone(
    serve: Callable[..., Served], database_url: str, database: Database
) -> None:
    served = serve(database_url, tick_seconds=3600)
    assert served.http().get("/readyz").status_code == 200
    migrate.downgrade(database)
    unready = served.http().get("/readyz")
    assert (unready.status_code, slug(unready)) == (503, "unavailable")
    migrate.upgrade(database)
    assert served.http().get("/readyz").status_code == 200


def test_postgresql_keeps_what_was_sent_as_it_is(database: Database, backend: str) -> None:
    if backend == "sqlite":
        pytest.skip("SQLite compresses nothing")
    with database.write() as session:
        payload, _ = payloads.store_bytes(session, bytes(2**18))  # zeros: nothing shrinks more
        kept = session.scalar(
            text("SELECT sum(pg_column_size(data)) FROM payload_chunks WHERE payload_id = :payload"),
            {"payload": payload},
        )
    assert kept == 2**18
