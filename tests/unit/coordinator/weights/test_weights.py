from __future__ import annotations

import base64
import hashlib

import pytest

from tests.scene.coordinator import Served, Silo, slug
from tests.scene.rounds import join, one_round, plan, running, show, try_join, url, weights


def test_weights_need_a_join(coordinator: Served) -> None:
    _, (first, second) = running(coordinator)
    refused = first.http.get(url(first, 1, "/weights"))
    assert (refused.status_code, slug(refused)) == (409, "not-joined")
    join(second, 1)
    assert slug(first.http.get(url(first, 1, "/weights"))) == "not-joined"
    assert slug(first.http.get(url(first, 2, "/weights"))) == "not-found"
    assert slug(coordinator.admin.get(url(first, 1, "/weights"))) == "forbidden"


def test_digest_headers_match_the_served_bytes(coordinator: Served) -> None:
    _, (silo, _) = running(coordinator)
    digest = join(silo, 1)
    answer = silo.http.get(url(silo, 1, "/weights"))
    hashed = hashlib.sha256(answer.content).digest()
    assert digest == f"sha256:{hashed.hex()}"
    assert answer.headers["etag"] == f'"{digest}"'
    assert answer.headers["repr-digest"] == f"sha-256=:{base64.b64encode(hashed).decode()}:"
    assert answer.headers["content-length"] == str(len(answer.content))
    assert answer.headers["content-type"] == "application/vnd.tessera.adapter+safetensors"
    assert "content-encoding" not in answer.headers


def test_if_none_match_is_answered_304(coordinator: Served) -> None:
    federation_id, (silo, _) = running(coordinator)
    tag = f'"{join(silo, 1)}"'
    for field in (tag, f'W/{tag}, "x"', "*"):
        answer = silo.http.get(url(silo, 1, "/weights"), headers={"If-None-Match": field})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == tag
    assert show(coordinator, federation_id, 1)["bytes"]["down"] == 0
    answer = silo.http.get(url(silo, 1, "/weights"), headers={"If-None-Match": '"other"'})
    assert answer.status_code == 200


@pytest.fixture(scope="module")
def reader(coordinator: Served) -> tuple[Silo, bytes]:
    """A client with weights of more than one chunk."""
    large = plan(adapter={"rank": 600, "blocks": 1, "roles": ["q"]})
    _, (silo, _) = running(coordinator, **large)
    join(silo, 1)
    return silo, silo.http.get(url(silo, 1, "/weights")).content


@pytest.mark.parametrize(
    ("field", "begin", "end"),
    [
        ("bytes=0-", 0, None),
        ("bytes=10-19", 10, 20),
        ("bytes=1048000-1049000", 1048000, 1049001),
        ("bytes=-5", -5, None),
        ("bytes=7-99999999999", 7, None),
    ],
)
def test_a_range_is_served(reader: tuple[Silo, bytes], field: str, begin: int, end: int | None) -> None:
    silo, whole = reader
    answer = silo.http.get(url(silo, 1, "/weights"), headers={"Range": field})
    expected = whole[begin:end]
    assert (answer.status_code, answer.content) == (206, expected)
    first = whole.find(expected) if begin < 0 else begin
    last = len(whole) - 1 if end is None else end - 1
    if begin >= 0:
        assert answer.headers["content-range"] == f"bytes {first}-{last}/{len(whole)}"
    assert answer.headers["content-length"] == str(len(expected))


@pytest.mark.parametrize("field", ["bytes=5-4", "bytes=0-1,3-4", "bytes=-", "lines=1-2", "bytes=x-"])
def test_malformed_and_multiple_ranges_are_ignored(reader: tuple[Silo, bytes], field: str) -> None:
    silo, whole = reader
    answer = silo.http.get(url(silo, 1, "/weights"), headers={"Range": field})
    assert (answer.status_code, len(answer.content)) == (200, len(whole))


def test_a_range_beyond_the_end_is_refused(reader: tuple[Silo, bytes]) -> None:
    silo, whole = reader
    answer = silo.http.get(url(silo, 1, "/weights"), headers={"Range": f"bytes={len(whole)}-"})
    assert (answer.status_code, slug(answer)) == (416, "range")
    assert answer.json()["size"] == len(whole)
    assert answer.headers["content-range"] == f"bytes */{len(whole)}"


def test_if_range_mismatches_return_the_whole_body(reader: tuple[Silo, bytes]) -> None:
    silo, whole = reader
    headers = {"Range": "bytes=10-", "If-Range": '"other"'}
    answer = silo.http.get(url(silo, 1, "/weights"), headers=headers)
    assert (answer.status_code, len(answer.content)) == (200, len(whole))


def test_published_weights_never_change(coordinator: Served) -> None:
    federation_id, silos = running(coordinator)
    one_round(coordinator, federation_id, silos, 1, [1.0, 3.0])
    join(silos[0], 2)
    before = silos[0].http.get(url(silos[0], 2, "/weights")).content
    one_round(coordinator, federation_id, silos, 2, [8.0, 9.0])
    one_round(coordinator, federation_id, silos, 3, [8.0, 9.0])
    assert silos[0].http.get(url(silos[0], 2, "/weights")).content == before
    assert try_join(silos[0], 2).status_code == 200
    assert (weights(silos[0], 4)["b0.q.P"] == 8.5).all()
