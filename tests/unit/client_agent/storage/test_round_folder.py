"""The agent's folder: atomic files, resumable rounds, one process at a time, bounded disk."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from client_agent.errors import FolderInUse, NotEnrolled, SettingsUnusable
from client_agent.identity.agent_folder import exclusive, read_membership
from client_agent.settings import read_settings
from client_agent.storage.files import write_durably
from client_agent.storage.round_folder import SCORES_SENT, TRAINED, RoundFolders


def test_durable_write_leaves_one_whole_file(tmp_path: Path) -> None:
    write_durably(tmp_path / "deep" / "file", b"one")
    write_durably(tmp_path / "deep" / "file", b"two")
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["file"]
    assert (tmp_path / "deep" / "file").read_bytes() == b"two"
    assert stat.S_IMODE((tmp_path / "deep" / "file").stat().st_mode) == 0o600


def test_newest_earlier_round_with_a_result_is_found(tmp_path: Path) -> None:
    folders = RoundFolders(tmp_path)
    for number in (1, 2, 4):
        folders.open(number)
    folders.open(1).write(TRAINED, b"1")
    folders.open(2).write(TRAINED, b"2")
    newest = folders.newest_with(TRAINED, before=4)
    assert newest is not None
    assert newest.number == 2
    assert folders.newest_with(TRAINED, before=1) is None
    assert folders.newest_with(SCORES_SENT, before=9) is None


def test_old_rounds_are_deleted_except_the_last_trained(tmp_path: Path) -> None:
    folders = RoundFolders(tmp_path)
    for number in range(1, 6):
        folders.open(number).write(TRAINED, b"t")
    folders.open(6)
    folders.open(7)
    folders.forget_old(2)
    assert [folder.number for folder in folders.newest_first()] == [7, 6, 5, 4]


def test_folder_in_use_refuses_a_second_process(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(FolderInUse, match="another agent"), exclusive(tmp_path):
        pass
    with exclusive(tmp_path):
        pass


def test_folder_without_membership_asks_to_enrol(tmp_path: Path) -> None:
    with pytest.raises(NotEnrolled, match="tessera agent enrol"):
        read_membership(tmp_path)
    (tmp_path / "membership.json").write_text("{")
    with pytest.raises(SettingsUnusable, match="damaged"):
        read_membership(tmp_path)


CONFIG = 'url = "https://t.example"\nmodel = "org/model"\ntrain = "data/train.jsonl"\n'


def test_paths_in_a_config_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "silo.toml").write_text(CONFIG)
    settings = read_settings(tmp_path / "silo.toml")
    assert settings.train == str(tmp_path / "data/train.jsonl")
    assert settings.model == "org/model"


def test_agent_folder_is_beside_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silo.toml").write_text("url = 'http://127.0.0.1:1'\nmodel = 'm'\ntrain = 't'\n")
    monkeypatch.chdir("/")
    settings = read_settings(tmp_path / "silo.toml")
    assert settings.folder == tmp_path / "tessera-agent"
    with pytest.raises(NotEnrolled, match=str(tmp_path / "tessera-agent")):
        read_membership(settings.folder)
    monkeypatch.setenv("TESSERA_AGENT_FOLDER", "elsewhere")
    assert read_settings(tmp_path / "silo.toml").folder == Path("elsewhere")


def test_environment_wins_over_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silo.toml").write_text(CONFIG)
    monkeypatch.setenv("TESSERA_AGENT_MODEL", "org/other")
    assert read_settings(tmp_path / "silo.toml").model == "org/other"


def test_options_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("URL", "https://t.example"), ("MODEL", "m"), ("TRAIN", "t.jsonl"), ("THREADS", "2")):
        monkeypatch.setenv(f"TESSERA_AGENT_{name}", value)
    assert read_settings(None).threads == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("url = ", "is not TOML"),
        (CONFIG + "modle = 1\n", r"modle: there is no such option; did you mean model\?"),
        (CONFIG + "zzz = 1\n", "zzz: there is no such option\n"),
        (CONFIG + "policy.strategy = []\n", r"policy.strategy: .* did you mean strategies\?"),
        (CONFIG.replace("https://t.example", "nowhere"), "url"),
        ('url = "https://t.example"\n', "train"),
    ],
)
def test_invalid_config_names_its_faults(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "silo.toml").write_text(text)
    with pytest.raises(SettingsUnusable, match=complaint):
        read_settings(tmp_path / "silo.toml")


def test_missing_config_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(SettingsUnusable, match=r"cannot be read \(.*`tessera agent init` writes"):
        read_settings(tmp_path / "none.toml")
