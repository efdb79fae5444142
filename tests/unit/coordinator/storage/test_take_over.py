"""`tessera payloads take-over` makes a database the owner of its folder in a store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import typer
from click.testing import Result
from pydantic import SecretStr
from typer.testing import CliRunner

from coordinator import workers
from coordinator.cli import commands
from coordinator.db.engine import Database
from coordinator.storage import object_store, payload_moves, server_key
from tests.scene.coordinator import SIGNING_KEY, Served
from tests.scene.operator import Operator
from tests.scene.waiting import wait_until
from tests.unit.coordinator.storage.copies import Restore, assert_refused, expire, store_and_move

pytest.importorskip("obstore")


def command(database_url: str, store: str, *arguments: str) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    commands(app)
    environment = {"TESSERA_DATABASE_URL": database_url, "TESSERA_PAYLOAD_STORE": store}
    return CliRunner().invoke(app, ["payloads", *arguments], env=environment, catch_exceptions=False)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["owner-written", "owner-put"])
def test_an_interrupted_take_over_is_repeated(
    database: Database, tmp_path: Path, restore: Restore, place: str
) -> None:
    store = f"file://{tmp_path}"
    store_and_move(database, store)
    copy = restore(database)
    expire(database)
    store_and_move(database, store)
    assert_refused(copy, store=store)
    url = copy.url.render_as_string(hide_password=False)
    program = (
        "from coordinator.observability import fault_points; fault_points.arm()\n"
        "from coordinator.maintenance import take_over; take_over(None)"
    )
    variables = {"TESSERA_DATABASE_URL": url, "TESSERA_PAYLOAD_STORE": store, "TESSERA_CRASH": f"{place}:1"}
    killed = subprocess.run([sys.executable, "-c", program], env=os.environ | variables, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert_refused(copy, store=store)
    stopped = command(url, "", "move", "--to", store)
    assert stopped.exit_code == 1
    assert "run `tessera payloads take-over` here" in stopped.stderr
    assert command(url, store, "take-over", "--yes").exit_code == 0
    assert list(payload_moves.move(copy, store))


def test_a_coordinator_reports_a_dispute_until_take_over(
    serve: Callable[..., Served], database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "PASS_SECONDS", 0.05)
    store = f"file://{tmp_path}/store"
    served = serve(database_url, payload_store=store, tick_seconds=0.05)
    operator, marker = Operator(served), f"{payload_moves.home(served.database, store)}.owner"
    wait_until(lambda: object_store.small(marker) is not None, event="the first claim")
    assert served.counted("tessera_payload_store_owned") == 1
    object_store.put_small(marker, "the token of a copy")
    wait_until(lambda: served.counted("tessera_payload_store_owned") == 0, event="a pass of the mover")
    assert "run `tessera payloads take-over` here" in operator.warnings("ready")
    assert served.counted("tessera_payload_store_up") == 1
    result = command(database_url, store, "take-over", "--yes")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"This database owns its folder in {store}")
    wait_until(lambda: served.counted("tessera_payload_store_owned") == 1, event="a pass of the mover")
    assert served.http().get("/readyz").text == "ready\n"


def test_take_over_needs_a_store_and_a_confirmation(database_url: str, tmp_path: Path) -> None:
    with closing(Database(database_url)) as database:
        server_key.load(database, SecretStr(SIGNING_KEY))
    missing = command(database_url, "", "take-over", "--yes")
    assert missing.exit_code == 1
    assert "TESSERA_PAYLOAD_STORE is not set; set it, or pass --store" in missing.stderr
    target = f"file://{tmp_path}/other"
    assert command(database_url, "", "take-over", "--store", target).exit_code == 1  # nobody answers
    assert not (tmp_path / "other").exists()
    assert command(database_url, "", "take-over", "--store", target, "--yes").exit_code == 0
    assert len(list((tmp_path / "other").glob("*.owner"))) == 1
