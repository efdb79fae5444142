"""Modes of the files that Tessera writes: readable by their owner only, also in an open folder."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_agent.identity.agent_folder import exclusive
from client_agent.storage.files import write_durably
from client_agent.storage.round_folder import RoundFolders
from tests.scene.coordinator_process import start_process

ROOT = Path(__file__).parents[3]
FEDERATION = "fed_01a20d44b8dca65dc64c5256"


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """A permissive umask: other users may read files whose mode is not restricted."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def tessera(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder, as its user's shell would."""
    environment = {"PATH": os.defpath, "PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(
        [sys.executable, "-c", "from schemas.command import main; main()", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_database_and_its_backup_have_mode_0600(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert tessera(tmp_path, "migrate").returncode == 0
    assert tessera(tmp_path, "backup", "copy.db").returncode == 0
    assert {path.name: mode(path) for path in tmp_path.iterdir() if mode(path) != 0o600} == {}
    assert mode(tmp_path) == 0o755, "the folder is anybody's"


@pytest.mark.slow
def test_an_open_databases_mode_is_restricted_and_logged(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert tessera(tmp_path, "migrate").returncode == 0
    (tmp_path / "tessera.db").chmod(0o644)
    (tmp_path / "beside.txt").write_text("the user's own")
    again = tessera(tmp_path, "migrate")
    assert "files-were-open-to-others" in again.stderr
    assert "tessera.db" in again.stderr
    assert (mode(tmp_path / "tessera.db"), mode(tmp_path / "beside.txt"), mode(tmp_path)) == (
        0o600,
        0o644,
        0o755,
    )
    assert "files-were-open-to-others" not in tessera(tmp_path, "migrate").stderr


@pytest.mark.slow
def test_a_running_coordinators_files_have_mode_0600(tmp_path: Path) -> None:
    served = start_process(f"sqlite:///{tmp_path}/tessera.db", tmp_path)
    try:
        served.federation()
        files = list(tmp_path.glob("tessera.db*"))
        assert {path.name for path in files if mode(path) != 0o600} == set()
        assert files
    finally:
        served.stop()


def test_an_agents_files_are_its_owners_only(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    with exclusive(folder):
        write_durably(folder / "membership.json", b"{}")
        RoundFolders(folder / FEDERATION / "rounds").open(1).write("trained.safetensors", b"weights")
    assert mode(folder) == 0o700
    written = [path for path in folder.rglob("*.*") if path.is_file() and path.suffix != ".lock"]
    assert [mode(path) for path in written] == [0o600, 0o600]


def open_folder(folder: Path) -> Path:
    """Make a folder that everybody may read, such as a copy with other modes."""
    round_folder = folder / FEDERATION / "rounds" / "000001"
    round_folder.mkdir(parents=True)
    for file in (folder / "membership.json", folder / "agent.lock", round_folder / "trained.safetensors"):
        file.write_bytes(b"{}")
    folder.chmod(0o755)
    return round_folder / "trained.safetensors"


def test_an_agent_folders_mode_is_restricted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "agent"
    trained = open_folder(folder)
    with exclusive(folder):
        assert (mode(folder), mode(trained.parent), mode(trained)) == (0o700, 0o700, 0o600)
    assert "were readable by other users" in caplog.text
    caplog.clear()
    with exclusive(folder):
        assert caplog.text == ""


def test_a_folder_with_foreign_files_keeps_its_mode(tmp_path: Path) -> None:
    trained = open_folder(tmp_path)
    data = tmp_path / "train.jsonl"
    data.write_text("{}")
    (tmp_path / FEDERATION / "link").symlink_to(data)
    with exclusive(tmp_path):
        assert (mode(tmp_path), mode(data), mode(trained)) == (0o755, 0o644, 0o600)


def test_agent_commands_set_umask_077(tmp_path: Path) -> None:
    program = """
import os, typer
from client_agent.cli import commands
app = typer.Typer()
commands(app)
@app.command()
def after() -> None: pass
try:
    app(["agent", "status"])
except SystemExit:
    pass
print(oct(os.umask(0)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PATH": os.defpath, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "0o77", done.stderr
