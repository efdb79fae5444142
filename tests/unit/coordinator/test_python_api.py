"""The application from Python, for deployment with another server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import coordinator
from coordinator import Settings, create_app


def test_the_application_answers(tmp_path: Path) -> None:
    settings = Settings(
        database_url=f"sqlite:///{tmp_path}/tessera.db", admin_token="a-token-of-this-test-alone"
    )
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        assert client.get("/healthz").status_code == 200


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'make_app'"):
        _ = coordinator.make_app


def test_importing_the_package_imports_no_fastapi() -> None:
    code = "import sys, coordinator\nassert 'create_app' in dir(coordinator) and 'fastapi' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
