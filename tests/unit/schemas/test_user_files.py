"""Files of users: byte order marks, other encodings, and unwritable targets."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from client_agent.errors import PlanUnusable, SettingsUnusable
from client_agent.identity.agent_folder import exclusive
from client_agent.rounds.plan import read_plan
from client_agent.settings import read_settings
from coordinator.cli.federations import _read
from schemas.user_files import (
    FileUnusable,
    read_text,
    require_writable_file,
    require_writable_folder,
    write_text,
)
from tests.scene.agent_commands import tessera
from tests.scene.disks import fill, mounted
from tests.scene.silo_config import config

PLAN = json.dumps({"name": "x", "strategy": {"name": "fedavg"}})
BOM = "\ufeff"


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    plan, silo = tmp_path / "plan.json", config(tmp_path)
    plan.write_text(BOM + PLAN)
    silo.write_text(BOM + silo.read_text())
    assert read_plan(plan).name == _read(plan)["name"] == "x"
    assert read_settings(silo).threads == 1


def test_a_plan_file_gets_the_recommended_fields(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"name": "x", "strategy": {"name": "fedmosaic"}, "training": {"steps": 5}}')
    plan = read_plan(file)
    assert (plan.adapter.kind, plan.training.schedule, plan.training.steps) == ("lora", "linear", 5)
    file.write_text('["x"]')
    with pytest.raises(PlanUnusable, match="is not a federation plan"):
        read_plan(file)


def test_utf_16_is_named_in_the_error(tmp_path: Path) -> None:
    file, silo = tmp_path / "plan.json", tmp_path / "silo.toml"
    file.write_text(PLAN, "utf-16")
    silo.write_text("threads = 1", "utf-16")
    with pytest.raises(PlanUnusable, match="UTF-16 or UTF-32, not UTF-8; save the file as UTF-8"):
        read_plan(file)
    with pytest.raises(SettingsUnusable, match="save the file as UTF-8"):
        read_settings(silo)
    file.write_bytes(b'{\n"name": "caf\xe9"}')
    with pytest.raises(ValueError, match="line 2 has the byte 0xe9"):
        read_text(file)


def test_unwritable_target_is_refused(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    for file, reason in [
        (Path(os.devnull), "no regular file"),
        (Path("/dev/full"), "no regular file"),
        (tmp_path, "is a folder"),
        (tmp_path / "missing" / "x", "there is no folder"),
        (blocked / "x", "not a directory"),
    ]:
        with pytest.raises(FileUnusable, match=rf"^--out: .*{reason}"):
            require_writable_file(file, "--out")
    for folder in (blocked, blocked / "below", Path("/dev/full")):
        with pytest.raises(FileUnusable, match="is not a folder"):
            require_writable_folder(folder, "--out")
    require_writable_folder(tmp_path / "new" / "below", "--out")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("options", "reason"), [("ro", "read-only"), ("size=16k", "no space left")])
def test_read_only_and_full_disks_are_named(tmp_path: Path, options: str, reason: str) -> None:
    with mounted(tmp_path / "disk", options) as disk:
        if options != "ro":
            fill(disk)
        for check in (require_writable_file, require_writable_folder):
            with pytest.raises(FileUnusable, match=rf"^--out: {disk}/new cannot be written .{reason}"):
                check(disk / "new", "--out")
        with pytest.raises(FileUnusable, match=reason):
            write_text(disk / "new", "text", "--out")
        with pytest.raises(SettingsUnusable, match=f"(?i){reason}"), exclusive(disk / "state"):
            pass
        silo = config(tmp_path)
        for command in (
            ("init", "--model", "x", "--train", "y", "--out", disk / "silo.toml"),
            ("train", "--config", silo, "--plan", "x", "--out", disk / "a"),
            ("export", "--config", silo, "--out", disk / "a"),
            ("sent", "--config", silo, "--save", disk / "a"),
            ("write-anchors", "x", "--out", disk / "a"),
        ):
            done = tessera(*command)
            assert done.exit_code == 1
            assert f"cannot be written ({reason}" in done.stderr, done.stderr


def test_text_replaces_the_file_behind_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    link.symlink_to(file)
    write_text(link, "new", "--out")
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
