"""Faults of a silo's settings are listed together, by option or by variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.errors import SettingsUnusable
from client_agent.settings import read_settings

SILO = 'url = "https://tessera.example.org"\nmodel = "m"\ntrain = "t.jsonl"\n'


def _refusal(folder: Path, text: str) -> str:
    file = folder / "silo.toml"
    file.write_text(SILO + text)
    with pytest.raises(SettingsUnusable) as refused:
        read_settings(file)
    return str(refused.value)


def test_faults_of_a_file_are_all_listed(tmp_path: Path) -> None:
    message = _refusal(
        tmp_path, 'test_share = 2\nmetrics = ["f1", "x"]\npolicy.max_update_byte = 1\nthreds = 1\n'
    )
    for fault in (
        "  test_share: Input should be less than 1",
        "  metrics.1: Input should be 'option_accuracy'",
        "  policy.max_update_byte: there is no such option; did you mean max_update_bytes?",
        "  threds: there is no such option; did you mean threads?",
    ):
        assert fault in message


def test_wrong_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_AGENT_TEST_SHARE", "2")
    assert "  TESSERA_AGENT_TEST_SHARE: Input should be less than 1" in _refusal(tmp_path, "")


def test_variable_that_is_no_json_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_AGENT_REPORT_TO", "wandb")
    assert "TESSERA_AGENT_REPORT_TO is not JSON, in which lists" in _refusal(tmp_path, "")
    monkeypatch.delenv("TESSERA_AGENT_REPORT_TO")
    monkeypatch.setenv("TESSERA_AGENT_METRICS", "f1")
    assert "TESSERA_AGENT_METRICS: Input should be a valid list" in _refusal(tmp_path, "")


def test_misspelt_variable_has_the_nearest_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TESSERA_AGENT_MAX_EPSILONS", "3")
    monkeypatch.setenv("TESSERA_AGENT_LOG_LEVEL", "info")
    (tmp_path / "silo.toml").write_text(SILO)
    read_settings(tmp_path / "silo.toml")
    assert (
        "TESSERA_AGENT_MAX_EPSILONS: not read by any option; did you mean TESSERA_AGENT_MAX_EPSILON?"
        in caplog.text
    )
    assert "LOG_LEVEL" not in caplog.text
