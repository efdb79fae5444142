"""A bucket of S3 for tests of payloads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.s3_server import NoServer, S3Server, s3_server


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server of S3 with one bucket; its variables are those of this process."""
    pytest.importorskip("obstore")
    try:
        with s3_server(tmp_path) as server:
            for name, value in server.environment.items():
                monkeypatch.setenv(name, value)
            yield server
    except NoServer as error:
        pytest.skip(str(error))
