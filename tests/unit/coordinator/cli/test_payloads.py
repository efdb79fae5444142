"""`tessera payloads` refuses an invalid store before it opens a database."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.cli.service import payloads


@pytest.mark.parametrize(
    "to", ["nonsense", "s3://", "s3:///folder", "file://", "file:///", "http://host/bucket"]
)
def test_an_invalid_store_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.setenv("TESSERA_DATABASE_URL", f"sqlite:///{tmp_path / 'tessera.db'}")
    ended = CliRunner().invoke(payloads, ["move", "--to", to])
    assert ended.exit_code == 1
    assert ended.output == (
        f"error: {to} is not the URL of an object store; write s3://BUCKET/PREFIX, gs://, az:// or file:///FOLDER\n"
    )
    assert not (tmp_path / "tessera.db").exists()
