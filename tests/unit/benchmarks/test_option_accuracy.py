"""The benchmark of option accuracy: the score of a round, over data sets with options."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.option_accuracy import as_chat, as_listed, main, multiple_choice
from client_agent.model.chat import PLAIN, set_template
from client_agent.model.examples import learnt_parts
from client_agent.model.loading import load_base_model
from client_agent.training.evaluate import evaluate
from schemas.messages.federations import ScoresPlan
from tests.scene.real_rows import write_folders


@pytest.mark.slow
def test_the_printed_score_is_that_of_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, models = write_folders(tmp_path)
    model, out = str(models / "smollm2"), tmp_path / "figures.json"
    words = ["--data", str(data), "--model", model, "--rows", "24", "--only", "arc_easy", "boolq", "squad"]
    monkeypatch.setattr(sys, "argv", ["option_accuracy", *words, "--out", str(out)])
    main()
    printed = json.loads(out.read_text())["scores"]
    assert set(printed) == {"arc_easy", "boolq"}  # SQuAD's answers have no options
    assert "arc_easy" in capsys.readouterr().out
    base = load_base_model(model, device=torch.device("cpu"))
    for name, examples in multiple_choice(data, ["arc_easy", "boolq"]).items():
        whole = evaluate(base, examples, ScoresPlan(examples=24, new_tokens=0), max_length=64)
        score = whole.scores()["option_accuracy"]
        assert (printed[name]["accuracy"], printed[name]["rows"]) == pytest.approx((score.value, 24))
    assert printed["arc_easy"]["chance"] == pytest.approx(1 / 3)
    assert printed["arc_easy"]["most_frequent"] == 1.0  # the rows here are all answered by the second option


def test_a_chat_has_the_question_as_user_turn(tmp_path: Path) -> None:
    data, models = write_folders(tmp_path)
    tokenizer = load_base_model(str(models / "smollm2"), device=torch.device("cpu")).tokenizer
    set_template(tokenizer, PLAIN)
    example = multiple_choice(data, ["arc_easy"])["arc_easy"][0]
    text = learnt_parts(as_chat(example), tokenizer).text
    assert f"user: {example.prompt}\nassistant:" in text


def test_a_listed_question_contains_its_options(tmp_path: Path) -> None:
    data, _ = write_folders(tmp_path)
    example = multiple_choice(data, ["arc_easy"])["arc_easy"][0]
    listed = "\nA. 97 shells\nB. 96 shells\nC. 98 shells\nAnswer:"
    assert as_listed(example).prompt == example.prompt.removesuffix("\nAnswer:") + listed
    assert as_listed(example).options == example.options


def test_a_folder_without_options_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no <task template>/test\.jsonl with options"):
        multiple_choice(tmp_path)
