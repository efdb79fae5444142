"""Outgoing requests end at their deadline, whatever the server does."""

from __future__ import annotations

import pytest

from coordinator.http.outgoing_requests import Answer, NoAnswer, request
from tests.scene.trickling_server import PARTS, trickling
from tests.unit.coordinator.webhook_receiver import receiving

DEADLINE = 0.4


@pytest.mark.parametrize("part", PARTS)
def test_endless_answers_end_at_the_deadline(part: str) -> None:
    with trickling(part) as server:
        with pytest.raises(NoAnswer, match="Deadline"):
            request("GET", server.url, seconds=DEADLINE, most_bytes=2**20)
        assert server.connections == 1


def test_a_server_that_reads_nothing_times_out() -> None:
    with trickling("nothing", reads=False) as server, pytest.raises(NoAnswer, match="Deadline"):
        request("POST", server.url, seconds=DEADLINE, most_bytes=0, content=bytes(2**25))


def test_an_oversized_answer_is_not_read_completely() -> None:
    with trickling("body") as server, pytest.raises(NoAnswer, match="TooLong"):
        request("GET", server.url, seconds=60, most_bytes=3)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "https://nowhere.invalid/", "http://[", "ftp://x/"])
def test_invalid_and_unreachable_urls_raise_no_answer(url: str) -> None:
    with pytest.raises(NoAnswer):
        request("GET", url, seconds=5, most_bytes=9)


def test_redirects_are_returned_and_not_followed() -> None:
    with receiving(302) as receiver:
        first = request("POST", receiver.url, seconds=30, most_bytes=0, content=b"{}")
        second = request("POST", receiver.url, seconds=30, most_bytes=9, content=b"{}")
    assert (first, second) == (Answer(302, b""), Answer(204, b""))
    assert (first.is_success, second.is_success) == (False, True)
    assert [body for _, body in receiver.received] == [b"{}", b"{}"]
