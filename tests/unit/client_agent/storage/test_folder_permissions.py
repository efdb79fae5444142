"""Files of an agent are readable by their owner only, and links are not followed."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

from client_agent.agent_entries import FILES, FOLDERS
from client_agent.daemon import run
from client_agent.privacy.ledger import Book, Ledger
from client_agent.rounds.participant import Participant
from client_agent.storage.folder_permissions import is_agent_entry, open_folder
from tests.scene.agents import alone_plan, limited_sleep


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_agents_files_are_restricted_to_the_owner(tmp_path: Path) -> None:
    Ledger(tmp_path).write(Book())
    for file in (tmp_path / name for name in FILES):
        file.touch()
        file.chmod(0o644)
    for folder in (tmp_path / name for name in (*FOLDERS, "fed_01")):
        folder.mkdir()
        (folder / "file").touch()
        (folder / "file").chmod(0o644)
        folder.chmod(0o755)
    tmp_path.chmod(0o755)
    open_folder(tmp_path)
    assert mode(tmp_path) == 0o700
    for path in tmp_path.rglob("*"):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


def test_foreign_file_keeps_its_mode(tmp_path: Path) -> None:
    names = ("client.key", "notes.txt", "progress")
    for name in names:
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o644)
    tmp_path.chmod(0o755)
    open_folder(tmp_path)
    assert [mode(tmp_path / name) for name in names] == [
        0o600,
        0o644,
        0o644,
    ]
    assert mode(tmp_path) == 0o755


def test_links_are_not_followed(tmp_path: Path) -> None:
    state, outside = tmp_path / "state", tmp_path / "outside"
    for folder in (state, outside):
        folder.mkdir()
    (outside / "file").touch()
    (outside / "file").chmod(0o644)
    outside.chmod(0o755)
    (state / "rates").symlink_to(outside)
    (state / "client.key").symlink_to(outside / "file")
    open_folder(state)
    assert (mode(outside), mode(outside / "file")) == (0o755, 0o644)


def test_agent_writes_no_other_names(started: Callable[..., Participant]) -> None:
    participant = started(**alone_plan(rounds={"total": 1, "min_clients": 1}))
    run(participant, limited_sleep(500))
    assert [entry.name for entry in participant.workspace.folder.iterdir() if not is_agent_entry(entry)] == []
