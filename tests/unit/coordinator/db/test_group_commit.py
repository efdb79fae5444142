"""Group commit: concurrent updates share a commit, and each thread gets its own result."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.exc import OperationalError

from coordinator.db.engine import Database
from coordinator.db.federation_lock import hold_federation
from coordinator.db.group_commit import GroupCommit
from coordinator.db.tables.federations import ClientRow, UpdateRow
from coordinator.errors import Busy
from coordinator.updates import store
from schemas.wire.digests import digest_of
from tests.scene.coordinator import Served
from tests.scene.rounds import join, plan, put, running, update_body, values
from tests.scene.waiting import wait_until


class Counter:
    """Doubles numbers once released; counts its batches, and how many run at the same time."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.batches: list[list[int]] = []
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def double(self, numbers: Sequence[int]) -> list[int]:
        with self._lock:
            self.batches.append([*numbers])
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        assert self.may_go_on.wait(20)
        with self._lock:
            self.at_once -= 1
        if 13 in numbers:
            raise ArithmeticError(f"one of {len(numbers)}")
        return [2 * number for number in numbers]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as threads:
        yield threads


def _run_all(
    group_commit: GroupCommit, counter: Counter, pool: ThreadPoolExecutor, numbers: Sequence[int]
) -> list[Future[int]]:
    """Double numbers, one thread each; the first batch has begun before the others arrive."""
    first = pool.submit(group_commit.run, "line", numbers[0], counter.double)
    wait_until(lambda: bool(counter.batches))
    later = [pool.submit(group_commit.run, "line", number, counter.double) for number in numbers[1:]]
    wait_until(lambda: len(group_commit._queues["line"].waiting) == len(later))
    counter.may_go_on.set()
    return [first, *later]


def test_waiting_calls_run_in_one_batch(pool: ThreadPoolExecutor) -> None:
    counter = Counter()
    answers = _run_all(GroupCommit(max_leaders=1, max_batch=16), counter, pool, range(8))
    assert [answer.result(20) for answer in answers] == [2 * number for number in range(8)]
    assert [sorted(batch) for batch in counter.batches] == [[0], [*range(1, 8)]]


def test_batches_have_a_maximum_size(pool: ThreadPoolExecutor) -> None:
    counter = Counter()
    answers = _run_all(GroupCommit(max_leaders=1, max_batch=3), counter, pool, range(8))
    assert [answer.result(20) for answer in answers] == [2 * number for number in range(8)]
    assert [len(batch) for batch in counter.batches] == [1, 3, 3, 1]


def test_batches_have_a_maximum_of_bytes(pool: ThreadPoolExecutor) -> None:
    counter, group_commit = Counter(), GroupCommit(max_leaders=1, max_batch=16, max_bytes=10)
    first = pool.submit(group_commit.run, "line", 1, counter.double, size=99)
    wait_until(lambda: bool(counter.batches))
    later = []
    for number, size in enumerate((4, 4, 4, 20, 1), start=2):
        later.append(pool.submit(group_commit.run, "line", number, counter.double, size=size))
        wait_until(lambda: len(group_commit._queues["line"].waiting) == len(later))
    counter.may_go_on.set()
    assert [answer.result(20) for answer in (first, *later)] == [2, 4, 6, 8, 10, 12]
    assert counter.batches == [[1], [2, 3], [4], [5], [6]], "one alone may be larger"


def test_a_failed_batch_is_repeated_call_by_call(pool: ThreadPoolExecutor) -> None:
    counter = Counter()
    first, *later = _run_all(GroupCommit(max_leaders=1, max_batch=16), counter, pool, [0, 11, 12, 13, 14])
    assert first.result(20) == 0
    assert [answer.result(20) for answer in (*later[:2], later[3])] == [22, 24, 28]
    with pytest.raises(ArithmeticError, match="one of 1"):
        later[2].result(20)
    assert sorted(map(len, counter.batches)) == [1, 1, 1, 1, 1, 4]


def test_failures_of_the_database_are_never_repeated(pool: ThreadPoolExecutor) -> None:
    batches: list[int] = []
    may_go_on = threading.Event()

    def fail(numbers: Sequence[int]) -> list[int]:
        batches.append(len(numbers))
        assert may_go_on.wait(20)
        raise OperationalError(None, None, ArithmeticError("the answer of the commit was lost"))

    group_commit = GroupCommit(max_leaders=1, max_batch=16)
    first = pool.submit(group_commit.run, "line", 0, fail)
    wait_until(lambda: bool(batches))
    later = [pool.submit(group_commit.run, "line", number, fail) for number in range(1, 4)]
    wait_until(lambda: len(group_commit._queues["line"].waiting) == 3)
    may_go_on.set()
    for answer in (first, *later):
        with pytest.raises(OperationalError):
            answer.result(20)
    assert batches == [1, 3]
    assert group_commit._queues == {}


def test_a_failed_single_call_frees_the_queue(pool: ThreadPoolExecutor) -> None:
    counter, group_commit = Counter(), GroupCommit(max_leaders=1, max_batch=16)
    answers = _run_all(group_commit, counter, pool, [13, 1])
    with pytest.raises(ArithmeticError):
        answers[0].result(20)
    assert answers[1].result(20) == 2
    assert group_commit._queues == {}


def test_concurrent_leaders_have_a_maximum(pool: ThreadPoolExecutor) -> None:
    counter, group_commit = Counter(), GroupCommit(max_leaders=3, max_batch=2)
    answers = [pool.submit(group_commit.run, "line", number, counter.double) for number in range(20, 40)]
    wait_until(lambda: counter.at_once == 3 and len(group_commit._queues["line"].waiting) == 17)
    counter.may_go_on.set()
    assert [answer.result(20) for answer in answers] == [2 * number for number in range(20, 40)]
    assert counter.most_at_once == 3
    assert group_commit._queues == {}


def test_a_call_that_waits_too_long_is_refused(pool: ThreadPoolExecutor) -> None:
    counter, group_commit = Counter(), GroupCommit(max_leaders=1, max_batch=2, max_wait_seconds=0.2)
    first = pool.submit(group_commit.run, "line", 1, counter.double)
    wait_until(lambda: bool(counter.batches))
    with pytest.raises(Busy):
        group_commit.run("line", 2, counter.double)
    counter.may_go_on.set()
    assert first.result(20) == 2
    assert group_commit.run("line", 3, counter.double) == 6
    assert counter.batches == [[1], [3]]


def test_a_running_call_does_not_time_out(pool: ThreadPoolExecutor) -> None:
    group_commit, numbers = GroupCommit(max_leaders=1, max_batch=2, max_wait_seconds=0.2), Counter()

    def slowly(batch: Sequence[int]) -> list[int]:
        numbers.batches.append([*batch])
        time.sleep(0.1 if len(batch) == 1 else 0.6)
        return [2 * number for number in batch]

    first = pool.submit(group_commit.run, "line", 1, slowly)
    wait_until(lambda: bool(numbers.batches))
    later = [pool.submit(group_commit.run, "line", number, slowly) for number in (2, 3)]
    assert first.result(20) == 2
    assert sorted(answer.result(20) for answer in later) == [4, 6]
    assert [len(batch) for batch in numbers.batches] == [1, 2]


def test_queues_do_not_wait_for_each_other(pool: ThreadPoolExecutor) -> None:
    group_commit, slow, quick = GroupCommit(max_leaders=1, max_batch=2), Counter(), Counter()
    quick.may_go_on.set()
    waiting = pool.submit(group_commit.run, "slow", 1, slow.double)
    wait_until(lambda: bool(slow.batches))
    assert group_commit.run("quick", 2, quick.double) == 4
    slow.may_go_on.set()
    assert waiting.result(20) == 2


@pytest.mark.slow
def test_updates_of_one_commit_get_their_own_answers(coordinator: Served, pool: ThreadPoolExecutor) -> None:
    federation_id, silos = running(coordinator, 12, **plan(rounds={"min_clients": 12, "total": 1}))
    bodies = [update_body(silo, 1, join(silo, 1), values(float(place))) for place, silo in enumerate(silos)]
    revoked = silos[5].client_id
    with coordinator.database.write() as session:  # all of them wait for it
        hold_federation(session, federation_id)
        session.execute(update(ClientRow).where(ClientRow.id == revoked).values(state="revoked"))
        answers = [pool.submit(put, silo, 1, body) for silo, body in zip(silos, bodies, strict=True)]
        time.sleep(1.0)
    for silo, body, answer in zip(silos, bodies, answers, strict=True):
        response = answer.result(30)
        if silo.client_id == revoked:
            assert response.status_code == 401
        else:
            assert (response.status_code, response.json()["digest"]) == (201, digest_of(body)), response.text
            assert response.json()["client"] == silo.client_id
    with coordinator.database.read() as session:
        count = session.scalar(
            select(func.count()).select_from(UpdateRow).where(UpdateRow.federation_id == federation_id)
        )
    assert count == 11


@pytest.mark.slow
def test_storing_payloads_in_opposite_orders_does_not_deadlock(
    postgres_database: Database, pool: ThreadPoolExecutor
) -> None:
    """On SQLite one writes at a time anyhow."""
    both_have_one = threading.Barrier(2)

    def content(octets: bytes) -> store.Content:
        def pieces() -> Iterator[bytes]:
            with contextlib.suppress(threading.BrokenBarrierError):
                both_have_one.wait(1)
            yield octets

        return store.Content(digest_of(octets), len(octets), pieces)

    def store_in_order(order: Sequence[bytes]) -> dict[str, int]:
        with postgres_database.write() as session:
            return store.store_payloads(session, map(content, order))

    first_ids, second_ids = (pool.submit(store_in_order, order) for order in ([b"x", b"y"], [b"y", b"x"]))
    assert first_ids.result(30) == second_ids.result(30)
