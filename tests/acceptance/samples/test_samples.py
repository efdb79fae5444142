"""Files of earlier versions: this version reads the plan, the database and a silo's folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path

import pytest
from sqlalchemy import text

from client_agent.adapters.peft_folder import read_adapter_folder
from coordinator.db import migrate
from coordinator.db.engine import Database
from schemas.messages.federations import FederationPlan
from schemas.wire.digests import digest_of
from tests.acceptance.samples.make import SAMPLES, SILO
from tests.scene.coordinator import start

_ROUNDS = 3


@pytest.fixture(params=sorted(SAMPLES.glob("*.zip")), ids=lambda file: file.stem)
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Unpack a sample; its base model comes with the package."""
    with zipfile.ZipFile(request.param) as archive:
        archive.extractall(tmp_path)
    with as_file(files("studies.quickstart")) as shipped:
        shutil.copytree(shipped / "model", tmp_path / "model")
    return tmp_path


@pytest.fixture
def database(sample: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{sample}/coordinator/tessera.db")
    yield database
    database.close()


def test_a_sample_plan_is_read(sample: Path) -> None:
    plan = FederationPlan.model_validate_json((sample / "plan.json").read_bytes())
    assert (plan.strategy.name, plan.rounds.total) == ("fedmosaic", _ROUNDS)
    (stored,) = (sample / SILO / "state").glob("fed_*/plan.json")
    resolved = FederationPlan.model_validate_json(stored.read_bytes())
    # Manifests name this digest: a field that is added must not change it for plans that lack the field.
    assert json.loads(stored.with_name("manifest.json").read_bytes())["plan"] == digest_of(
        stored.read_bytes()
    )
    assert resolved.model_dump(mode="json") == json.loads(stored.read_bytes())


def test_a_sample_database_goes_up_and_down(database: Database) -> None:
    with database.read() as session:
        made_at = session.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        before = session.execute(text("SELECT count(*), sum(bytes) FROM weights")).one()
    migrate.upgrade(database)
    assert migrate.is_current(database)
    migrate.downgrade(database, to=made_at)
    with database.read() as session:
        assert session.execute(text("SELECT count(*), sum(bytes) FROM weights")).one() == before


def test_a_sample_database_is_served(sample: Path) -> None:
    key = (sample / "coordinator/tessera.db-signing-key").read_text().strip()
    served = start(f"sqlite:///{sample}/coordinator/tessera.db", signing_key=key)
    try:
        (federation,) = served.admin.get("/v1/federations").json()["items"]
        path = f"/v1/federations/{federation['id']}"
        rounds = served.admin.get(f"{path}/rounds").json()["items"]
        report = served.admin.get(f"{path}/report")
    finally:
        served.stop()
    assert [entry["state"] for entry in rounds] == ["published"] * _ROUNDS
    assert [len(entry["counted"]) for entry in report.json()["rounds"]] == [2] * _ROUNDS


@pytest.mark.slow
def test_a_sample_silo_exports_its_adapter(sample: Path) -> None:
    config = ("--config", str(sample / SILO / "silo.toml"))
    _printed("agent", "export", "--for", "peft", *config, "--out", str(sample / "peft"))
    assert read_adapter_folder(sample / "peft").tensors


def _printed(*arguments: str) -> str:
    """Run `tessera` with these arguments, and return what it prints."""
    command = [sys.executable, "-c", "from schemas.command import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
