"""Revoked clients receive no more bytes of a download."""

from __future__ import annotations

import httpx
import pytest

from coordinator.http import downloads
from schemas.wire.envelope import MEDIA_TYPE
from tests.scene.coordinator import Served
from tests.scene.rounds import join, plan, running, url

FAR_MORE_THAN_CONNECTIONS_HOLD = {"rank": 1024, "blocks": 4, "roles": ["q", "k", "v"]}


@pytest.fixture(autouse=True)
def check_each_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_RECHECK_SECONDS", 0.0)


@pytest.mark.parametrize("is_revoked", [False, True])
def test_a_download_ends_when_its_client_is_revoked(coordinator: Served, is_revoked: bool) -> None:
    federation_id, (silo, _) = running(coordinator, **plan(adapter=FAR_MORE_THAN_CONNECTIONS_HOLD))
    join(silo, 1)
    received = 0
    with silo.http.stream("GET", url(silo, 1, "/weights"), headers={"Accept": MEDIA_TYPE}) as answer:
        pieces = answer.iter_raw()
        received += len(next(pieces))
        if is_revoked:
            revoked = coordinator.admin.delete(f"/v1/federations/{federation_id}/clients/{silo.client_id}")
            assert revoked.status_code in (200, 204)
            with pytest.raises(httpx.RemoteProtocolError):
                received += sum(map(len, pieces))
            assert received < int(answer.headers["content-length"])
        else:
            received += sum(map(len, pieces))
            assert received == int(answer.headers["content-length"])
    assert coordinator.http().get("/v1/hello").status_code == 200
