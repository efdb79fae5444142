"""Redelivery of a pack: refusals name the pack or the agent as their cause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from client_agent.alignment.pack_delivery import redeliver_pack
from client_agent.errors import CoordinatorRefused, PackRefused
from client_agent.transport.client import CoordinatorApi
from tests.scene.coordinator import Served


def test_revoked_client_is_refused_by_its_key(
    serve: Callable[..., Served], fresh_database: Callable[[str], str], tmp_path: Path
) -> None:
    served = serve(fresh_database("sqlite"))
    federation_id = served.federation()
    silo = served.enrol(federation_id, "aster")
    (tmp_path / "pack.safetensors").write_bytes(b"no pack")
    with CoordinatorApi(served.url, key=silo.key, deadline_seconds=5) as api:
        with pytest.raises(PackRefused):
            redeliver_pack("model-0", "pivot-0", api, federation_id, tmp_path)
        assert (
            served.admin.delete(f"/v1/federations/{federation_id}/clients/{silo.client_id}").status_code
            == 204
        )
        with pytest.raises(CoordinatorRefused) as refused:
            redeliver_pack("model-0", "pivot-0", api, federation_id, tmp_path)
    assert refused.value.slug == "key-revoked"
