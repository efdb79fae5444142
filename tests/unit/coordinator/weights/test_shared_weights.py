"""Equal served values share their stored bytes; bodies stay separate for each client."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select

from coordinator.db.tables.federations import ChunkRow, WeightsRow
from schemas.wire.digests import digest_of
from tests.scene.coordinator import Served, Silo
from tests.scene.rounds import deliver, join, one_round, plan, running, url, values, wait_for

RANK = 600
LARGE = plan(adapter={"rank": RANK, "blocks": 1, "roles": ["q"]}, rounds={"min_clients": 3})
STATE_BYTES = 4 * (RANK * RANK + RANK)


def download(silo: Silo, number: int, field: str | None = None) -> tuple[int, bytes]:
    headers = {"Range": field} if field is not None else {}
    answer = silo.http.get(url(silo, number, "/weights"), headers=headers)
    if field is None:
        assert digest_of(answer.content) == answer.headers["etag"].strip('"')
    return answer.status_code, answer.content


@pytest.fixture(scope="module")
def second_round(coordinator: Served) -> list[Silo]:
    """Three clients that were served zeros in round 1, and their mean in round 2."""
    federation_id, silos = running(coordinator, 3, **LARGE)
    for silo, fill in zip(silos, (1.0, 2.0, 6.0), strict=True):
        deliver(silo, 1, values(fill, RANK))
    wait_for(coordinator, federation_id, 1, "published")
    for silo in silos:
        join(silo, 2)
    return silos


def test_equal_values_are_stored_once(coordinator: Served, second_round: list[Silo]) -> None:
    federation_id = second_round[0].federation_id
    for number in (1, 2):
        with coordinator.database.read() as session:
            stored_ids = set(
                session.scalars(
                    select(WeightsRow.payload_id).where(
                        WeightsRow.federation_id == federation_id, WeightsRow.round_number == number
                    )
                )
            )
            size = session.scalar(
                select(func.sum(func.length(ChunkRow.data))).where(ChunkRow.payload_id.in_(stored_ids))
            )
        assert len(stored_ids) == 1
        assert STATE_BYTES <= size < STATE_BYTES + 2000


def test_clients_have_separate_bodies(second_round: list[Silo]) -> None:
    for number in (1, 2):
        bodies = [download(silo, number)[1] for silo in second_round]
        assert len({body[-STATE_BYTES:] for body in bodies}) == 1
        for silo, body in zip(second_round, bodies, strict=True):
            assert f'\\"client\\":\\"{silo.client_id}\\"'.encode() in body[:-STATE_BYTES]


@pytest.mark.parametrize(
    "field", ["bytes=0-9", "bytes=5-4000", "bytes=300000-1400000", "bytes=-7", "bytes=9-"]
)
def test_ranges_may_cover_head_and_values(second_round: list[Silo], field: str) -> None:
    first, last = field.removeprefix("bytes=").split("-")
    for silo in second_round:
        _, whole = download(silo, 2)
        begin = int(first) if first else len(whole) - int(last)
        end = int(last) + 1 if first and last else len(whole)
        assert download(silo, 2, field) == (206, whole[begin:end])


def test_different_mixtures_share_no_stored_bytes(coordinator: Served) -> None:
    federation_id, silos = running(coordinator, 2, **plan(strategy={"name": "fedmosaic"}))
    one_round(coordinator, federation_id, silos, 1, [1.0, 2.0])
    with coordinator.database.read() as session:
        stored_ids = session.scalars(
            select(WeightsRow.payload_id).where(
                WeightsRow.federation_id == federation_id, WeightsRow.round_number == 2
            )
        ).all()
    assert len(set(stored_ids)) == 2
