"""Tokenizers with more tokens than the model's embedding has rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from client_agent.errors import TokenizerUnfit
from client_agent.model.examples import Example, encode_for, encode_prompt
from client_agent.model.loading import load_base_model
from client_agent.model.tokens import pad_id
from client_agent.settings import read_settings
from client_agent.training.silo import open_silo
from tests.scene.agent_processes import MODELS
from tests.scene.agents import checked
from tests.scene.silo_config import config

CPU = torch.device("cpu")


def with_tokens(folder: Path, *tokens: str, **settings: str) -> Path:
    """Copy the small example model, whose embedding has 48 rows, with tokens of the ids 48 and above."""
    shutil.copytree(MODELS["S"], folder)
    parts = json.loads((folder / "tokenizer.json").read_text())
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    parts["added_tokens"] += [{"id": 48 + i, "content": text, **plain} for i, text in enumerate(tokens)]
    (folder / "tokenizer.json").write_text(json.dumps(parts))
    written = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**written, **settings}))
    return folder


def test_unused_token_without_row_may_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    base = load_base_model(str(with_tokens(tmp_path / "tiny", "qqq", "[PAD]", pad_token="[PAD]")), device=CPU)
    assert "has 48 rows, and none for the tokens 'qqq', '[PAD]'" in caplog.text
    assert base.tokenizer.pad_token_id == 49
    assert pad_id(base.tokenizer) == base.tokenizer.eos_token_id
    (text,) = encode_for(base, [Example("rev ab=", "ba")], 16)
    assert max(text.ids) < 48


def test_token_of_a_text_without_row_is_named(tmp_path: Path) -> None:
    base = load_base_model(str(with_tokens(tmp_path / "tiny", "ab")), device=CPU)
    reason = r"token 'ab' \(id 48\) is in the text 'rev abc=cba'"
    with pytest.raises(TokenizerUnfit, match=reason):
        encode_for(base, [Example("rev abc=", "cba")], 16)
    with pytest.raises(TokenizerUnfit, match=r"token 'ab' \(id 48\)"):
        encode_prompt("rev ab=", base.tokenizer, chat=False)


def test_check_and_training_name_tokens_without_row(tmp_path: Path) -> None:
    file = config(tmp_path, model=str(with_tokens(tmp_path / "tiny", "CIPHER ")))
    finding = checked(file)["data"]
    assert not finding.passed
    assert "token 'CIPHER ' (id 48)" in finding.detail
    silo = open_silo(read_settings(file))
    with pytest.raises(TokenizerUnfit, match=r"token 'CIPHER ' \(id 48\)"):
        silo.require_fit(64)


def test_eos_without_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerUnfit, match=r"none for the tokens '\[END\]'; every text ends with"):
        load_base_model(str(with_tokens(tmp_path / "tiny", "[END]", eos_token="[END]")), device=CPU)
