"""GGUF files: what is refused, and that a converted file is not converted again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from client_agent.errors import ModelNotFound
from client_agent.model.gguf import model_folder


def test_other_sources_are_left_alone(tmp_path: Path) -> None:
    for source in ("/models/tiny", "openai/gsm8k", str(tmp_path)):
        assert model_folder(source, tmp_path) == source


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.gguf: cannot be read"):
        model_folder(str(tmp_path / "none.gguf"), tmp_path)


def test_a_file_that_is_no_gguf_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "junk.gguf"
    file.write_bytes(b"junk" * 100)
    with pytest.raises(ModelNotFound, match=r"junk\.gguf: cannot be converted"):
        model_folder(str(file), tmp_path / "home")
    assert not list((tmp_path / "home" / "models").iterdir())


def test_a_converted_file_is_found_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF")
    digest = hashlib.sha256(b"GGUF").hexdigest()[:12]
    folder = tmp_path / "home" / "models" / f"small-{digest}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert model_folder(str(file), tmp_path / "home") == str(folder)
