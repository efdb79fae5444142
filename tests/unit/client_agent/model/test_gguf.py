"""GGUF files: refusals, and one conversion per file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from client_agent.errors import ModelNotFound
from client_agent.model import gguf
from client_agent.model.gguf import model_folder
from client_agent.model.loading import base_model_slug


def test_sources_other_than_gguf_are_unchanged(tmp_path: Path) -> None:
    for source in ("/models/tiny", "openai/gsm8k", str(tmp_path)):
        assert model_folder(source, tmp_path) == source


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.gguf: cannot be read"):
        model_folder(str(tmp_path / "none.gguf"), tmp_path)


def test_invalid_gguf_file_is_refused_without_leftovers(tmp_path: Path) -> None:
    file = tmp_path / "junk.gguf"
    file.write_bytes(b"junk" * 100)
    with pytest.raises(ModelNotFound, match=r"junk\.gguf: cannot be converted"):
        model_folder(str(file), tmp_path / "home")
    assert not list((tmp_path / "home" / "models").iterdir())


def test_converted_file_is_found_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF")
    digest = hashlib.sha256(b"GGUF").hexdigest()[:12]
    folder = tmp_path / "home" / "models" / f"small-{digest}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert model_folder(str(file), tmp_path / "home") == str(folder)


def test_gguf_without_home_is_converted_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match=r"small\.gguf: cannot be converted"):
        base_model_slug(str(file))
    assert (tmp_path / "cache" / "tessera" / "models").is_dir()


def test_conversion_by_a_faster_process_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF")

    def write_while_another_is_faster(_: Path, unfinished: Path) -> None:
        (unfinished / "config.json").write_text("second")
        faster = unfinished.parent / unfinished.name[1:].rpartition("-")[0]
        faster.mkdir()
        (faster / "config.json").write_text("first")

    monkeypatch.setattr(gguf, "_write", write_while_another_is_faster)
    folder = Path(model_folder(str(file), tmp_path))
    assert (folder / "config.json").read_text() == "first"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_abandoned_conversion_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(gguf, "_write", lambda _, unfinished: (unfinished / "config.json").touch())
    digest = hashlib.sha256(b"GGUF").hexdigest()[:12]
    abandoned, running = (tmp_path / "models" / f".small-{digest}-{name}" for name in ("old", "new"))
    for folder in (abandoned, running):
        folder.mkdir(parents=True)
    os.utime(abandoned, (0, 0))
    model_folder(str(file), tmp_path)
    assert (abandoned.exists(), running.exists()) == (False, True)
