"""Event streams: the limit of each caller, one query for all, and reserved connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from coordinator.federations import event_fanout, event_stream
from coordinator.federations.event_fanout import MAX_STREAMS_PER_CALLER, Streams
from coordinator.http.limits.connections import reserved
from tests.scene.coordinator import Served, Silo, slug
from tests.scene.signed_requests import request_bytes, signed
from tests.scene.waiting import wait_until

MOST = 40


def path_of(federation_id: str) -> str:
    return f"/v1/federations/{federation_id}/events"


def lines_of(
    stack: ExitStack, client: httpx.Client, federation_id: str, last: int | None = None
) -> Iterator[str]:
    """Begin to follow; return the lines of the stream."""
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    answer = stack.enter_context(client.stream("GET", path_of(federation_id), headers=headers))
    assert answer.status_code == 200
    return answer.iter_lines()


def test_a_caller_follows_four_streams_at_once(coordinator: Served) -> None:
    federation_id = coordinator.federation()
    silo, second = coordinator.enrol(federation_id, "a"), coordinator.enrol(federation_id, "b")
    with ExitStack() as stack:
        for _ in range(MAX_STREAMS_PER_CALLER - 1):
            lines_of(stack, silo.http, federation_id)
        with ExitStack() as last:
            lines_of(last, silo.http, federation_id)
            refused = silo.http.get(path_of(federation_id))
            assert (refused.status_code, slug(refused)) == (429, "rate-limited")
            assert int(refused.headers["retry-after"]) >= 1
            lines_of(stack, second.http, federation_id)

        def is_let_in() -> bool:
            with silo.http.stream("GET", path_of(federation_id)) as answer:
                return answer.status_code == 200

        wait_until(is_let_in)


@pytest.mark.slow
def test_the_streams_of_a_process_share_one_query(
    serve: Callable[..., Served], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(database_url)
    queries: list[set[str]] = []
    pages: list[str] = []
    ask, page = event_fanout._query, event_fanout._page

    def asking(*arguments: Any) -> Any:
        queries.append(arguments[1])
        return ask(*arguments)

    def paging(database: Any, follower: event_fanout.Follower) -> Any:
        pages.append(follower.federation_id)
        return page(database, follower)

    monkeypatch.setattr(event_fanout, "_query", asking)
    monkeypatch.setattr(event_fanout, "_page", paging)
    silos = [served.enrol(served.federation(), f"silo-{i}") for i in range(3)]
    federation_ids = {silo.federation_id for silo in silos}
    with ExitStack() as stack:
        opened = [lines_of(stack, silo.http, silo.federation_id) for silo in silos for _ in range(4)]
        state: Streams = served._server._app.state.streams
        polls = state.polls + 1
        wait_until(lambda: state.polls > polls + 2)
        assert queries[-1] == federation_ids
        assert len(pages) == len(opened), "who is quiet asks once, when it begins"
        served.start_federation(silos[0].federation_id)
        for lines in opened[:4]:
            assert next(line for line in lines if line.startswith("event: ")) == "event: round"
        assert len(pages) == len(opened), "nor is anything looked up for each of them"


@pytest.mark.slow
def test_a_quiet_stream_sends_heartbeats_and_ends(
    coordinator: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(event_stream, "LONGEST_SECONDS", 1.0)
    federation_id = coordinator.federation()
    coordinator.enrol(federation_id, "a")
    with ExitStack() as stack:
        lines = list(lines_of(stack, coordinator.admin, federation_id))
    assert ": still here" in lines
    assert "id: 1" in lines, "by which it is resumed, though nothing happened"
    coordinator.enrol(federation_id, "b")
    with ExitStack() as stack:
        assert "id: 2" in list(lines_of(stack, coordinator.admin, federation_id, last=1))


def test_a_slow_follower_receives_all_events(coordinator: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_fanout, "_REMEMBERED", 1)
    federation_id = coordinator.federation()
    with ExitStack() as stack:
        lines = lines_of(stack, coordinator.admin, federation_id)
        for name in "abcd":
            coordinator.enrol(federation_id, name)
        ids = (line for line in lines if line.startswith("id: ") and line != "id: 0")
        assert [next(ids) for _ in range(4)] == ["id: 1", "id: 2", "id: 3", "id: 4"]


@pytest.fixture
def crowded(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> Iterator[tuple[Served, Silo]]:
    """A server whose unreserved connections are all held by a silent client."""
    served = serve(fresh_database("sqlite"), connections=MOST)
    silo = served.enrol(served.federation(), "a")
    for client in served._opened:
        client.close()
    served._opened.clear()
    served._admin = None
    connections = served._server.server_state.connections
    wait_until(lambda: not connections)
    with ExitStack() as stack:
        for _ in range(MOST - reserved(MOST)):
            stack.enter_context(served.line())
        wait_until(lambda: len(connections) == MOST - reserved(MOST))
        yield served, silo


def test_reserved_connections_serve_probes_and_persons(
    crowded: tuple[Served, Silo],
) -> None:
    served, silo = crowded
    for path in ("/healthz", "/readyz"):
        answer = served.http().get(path)
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    assert served.admin.get("/v1/federations").status_code == 200
    strangers = [served.http(), served.http("tsr_admin_guess")]
    for client in strangers:
        refused = client.get("/v1/hello")
        assert (refused.status_code, slug(refused)) == (503, "busy")
        assert refused.headers["connection"] == "close"
    request = signed(served, silo, "GET", "/v1/me")
    with served.line() as line:
        line.sendall(request_bytes(request))
        assert line.recv(12) == b"HTTP/1.1 503"
    assert slug(served.admin.get(path_of(silo.federation_id))) == "busy"


def test_one_clients_streams_do_not_exhaust_the_connections(
    serve: Callable[..., Served], fresh_database: Callable[[str], str]
) -> None:
    served = serve(fresh_database("sqlite"), connections=MOST)
    silo = served.enrol(served.federation(), "a")
    statuses: list[bytes] = []
    with ExitStack() as stack:
        for _ in range(MOST + 5):
            line = stack.enter_context(served.line())
            line.sendall(request_bytes(signed(served, silo, "GET", path_of(silo.federation_id))))
            statuses.append(line.recv(12)[-3:])
        assert statuses.count(b"200") == MAX_STREAMS_PER_CALLER
        assert served.http().get("/healthz").status_code == 200
