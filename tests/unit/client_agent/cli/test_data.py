"""`tessera agent init` and `tessera agent data` on an engineer's own data."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from client_agent.settings import AgentSettings
from tests.scene.agent_commands import tessera
from tests.scene.agent_processes import MODELS


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "tickets.csv"
    file.write_text("instruction,output\n" + "".join(f"route {i},desk {i % 3}\n" for i in range(40)))
    return file


def test_init_writes_settings_that_the_agent_reads(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "silo.toml"
    done = tessera("init", "--model", MODELS["S"], "--train", table, "--out", out)
    assert done.exit_code == 0, done.output
    assert "40 examples of the format alpaca" in done.output
    settings = AgentSettings.from_toml(out)
    assert (settings.model, settings.train, settings.test) == (str(MODELS["S"]), str(table), None)


def test_init_notes_that_a_model_is_fetched_later(table: Path, tmp_path: Path) -> None:
    done = tessera("init", "--model", "nosuch/thing", "--train", table, "--out", tmp_path / "silo.toml")
    assert done.exit_code == 0, done.output
    assert "nosuch/thing is neither a folder on this machine nor" in done.stdout
    here = tessera("init", "--model", MODELS["S"], "--train", table, "--out", tmp_path / "other.toml")
    assert "no folder on this machine" not in here.stdout


def test_init_takes_the_coordinator_of_the_environment(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_URL", "https://tessera.example.org/")
    begun, named = tmp_path / "begun.toml", tmp_path / "named.toml"
    tessera("init", "--model", MODELS["S"], "--train", table, "--out", begun)
    assert str(AgentSettings.from_toml(begun).url) == "https://tessera.example.org/"
    tessera("init", "--model", MODELS["S"], "--train", table, "--out", named, "--url", "http://127.0.0.1:9")
    assert str(AgentSettings.from_toml(named).url) == "http://127.0.0.1:9/"


def test_init_maps_columns(tmp_path: Path) -> None:
    file, out = tmp_path / "faq.csv", tmp_path / "silo.toml"
    file.write_text("question,answer\n" + "".join(f"what is {i},number {i}\n" for i in range(40)))
    columns = ("--column", "prompt=question", "--column", "completion=answer")
    unmapped = tessera("init", "--model", MODELS["S"], "--train", file, "--out", out)
    assert "--column prompt=question" in unmapped.output
    mistaken = tessera("init", "--model", MODELS["S"], "--train", file, "--column", "question", "--out", out)
    assert "is not NAME=COLUMN" in mistaken.output
    assert not out.exists()
    mapped = tessera("init", "--model", MODELS["S"], "--train", file, *columns, "--out", out)
    assert mapped.exit_code == 0, mapped.output
    assert AgentSettings.from_toml(out).columns == (("completion", "answer"), ("prompt", "question"))


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("empty", "has no config.json, so it is not a model; pass the folder of a model"),
        ("table.csv", "is a file, but no .gguf file"),
        ("./none", "./none does not exist"),
        ("none.gguf", "none.gguf does not exist"),
    ],
)
def test_init_refuses_an_invalid_model(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("table.csv").write_bytes(table.read_bytes())
    done = tessera("init", "--model", model, "--train", table, "--out", "silo.toml")
    assert done.exit_code == 1
    assert f"error: --model: {model}" in done.output
    assert error in done.output
    assert not Path("silo.toml").exists()


def test_init_keeps_an_existing_file(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "silo.toml"
    out.write_text("# mine\n")
    done = tessera("init", "--model", MODELS["S"], "--train", table, "--out", out)
    assert done.exit_code == 1
    assert "exists already" in done.output
    assert out.read_text() == "# mine\n"


def test_init_refuses_data_that_cannot_be_read(tmp_path: Path) -> None:
    out = tmp_path / "silo.toml"
    done = tessera("init", "--model", "x", "--train", tmp_path / "none.csv", "--out", out)
    assert done.exit_code == 1
    assert "cannot be read" in done.output
    assert not out.exists()


def test_data_shows_learnt_text_and_counts(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "silo.toml"
    held_out = ("--validation", table, "--test", table)
    tessera("init", "--model", MODELS["S"], "--train", table, *held_out, "--out", out)
    done = tessera("data", "--config", out, "--examples", "1")
    assert done.exit_code == 0, done.output
    assert "route 0" in done.output
    assert "»desk 0<eos>«" in done.output
    counts = json.loads(tessera("data", "--config", out, "--json").output)
    assert {counts[name]["examples"] for name in ("train", "validation", "test")} == {40}
    assert counts["in two sets"] == 40
    assert counts["skipped rows"] == 0
    assert counts["train"]["learnt tokens"] > 40


def test_skipped_rows_are_counted(table: Path, tmp_path: Path) -> None:
    table.write_text(table.read_text() + "route 41,\n")
    out = tmp_path / "silo.toml"
    out.write_text(f'url = "http://127.0.0.1:1"\nmodel = "{MODELS["S"]}"\ntrain = "{table}"\n')
    refused = tessera("data", "--config", out)
    assert refused.exit_code == 1
    assert "row 42: column output is empty" in " ".join(refused.output.split())
    out.write_text(out.read_text() + "skip_bad_rows = true\n")
    assert json.loads(tessera("data", "--config", out, "--json").stdout)["skipped rows"] == 1


def test_init_writes_paths_valid_in_another_folder(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "elsewhere" / "silo.toml"
    done = tessera("init", "--model", "openai/\U0001f600", "--train", table.name, "--out", out)
    assert done.exit_code == 0, done.output
    settings = AgentSettings.from_toml(out)
    assert (settings.model, settings.train) == ("openai/\U0001f600", str(table))


def test_init_keeps_the_split_of_a_saved_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    rows = datasets.Dataset.from_list([{"prompt": f"a{n}", "completion": "b"} for n in range(20)])
    datasets.DatasetDict({"train": rows}).save_to_disk("saved")
    out = tmp_path / "elsewhere" / "silo.toml"
    done = tessera("init", "--model", MODELS["S"], "--train", "saved:train", "--out", out)
    assert done.exit_code == 0, done.output
    assert AgentSettings.from_toml(out).train == f"{tmp_path / 'saved'}:train"


def test_init_reads_a_folder_of_three_files(tmp_path: Path) -> None:
    folder, out = tmp_path / "data", tmp_path / "silo.toml"
    folder.mkdir()
    for name, count in (("train", 5), ("validation", 3), ("test", 2)):
        rows = [
            json.dumps({"prompt": f"{name} {number}", "completion": "c"}) + "\n" for number in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(rows))
    done = tessera("init", "--model", MODELS["S"], "--train", folder, "--out", out)
    assert done.exit_code == 0, done.output
    assert "5 examples" in done.output
    assert AgentSettings.from_toml(out).train == str(folder)
    for words in ("validation", "a tenth"):
        assert words in out.read_text()
    counts = json.loads(tessera("data", "--config", out, "--json").stdout)
    assert [counts[name]["examples"] for name in ("train", "validation", "test")] == [5, 3, 2]


def test_empty_validation_set_is_counted(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "silo.toml"
    out.write_text(
        f'url = "http://127.0.0.1:1"\nmodel = "{MODELS["S"]}"\ntrain = "{table}"\nvalidation_share = 0\n'
    )
    counts = json.loads(tessera("data", "--config", out, "--json").stdout)
    assert (counts["validation"]["examples"], counts["validation"]["longest"]) == (0, 0)
    assert counts["train"]["examples"] + counts["test"]["examples"] == 40


def test_init_refuses_too_few_examples_to_split(tmp_path: Path) -> None:
    file, out = tmp_path / "few.jsonl", tmp_path / "silo.toml"
    rows = [json.dumps({"prompt": f"what is {i}", "completion": f"number {i}"}) for i in range(2)]
    file.write_text(rows[0] + "\n")
    done = tessera("init", "--model", MODELS["S"], "--train", file, "--out", out)
    assert done.exit_code == 1
    assert "has too few examples (1) for a share of 20%" in done.output
    assert "add examples until 5 are different, or name held-out ones" in done.output
    assert not out.exists()
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text(rows[1] + "\n")
    named = tessera("init", "--model", MODELS["S"], "--train", file, "--test", held_out, "--out", out)
    assert named.exit_code == 0, named.output


def test_unused_columns_are_printed(tmp_path: Path) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "silo.toml"
    rows = [{"prompt": f"what is {i}", "completion": f"{i}", "tone": "kind", "label": True} for i in range(9)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused = tessera("init", "--model", MODELS["S"], "--train", file, "--out", out)
    assert "column label changes what is learnt" in refused.output
    done = tessera("init", "--model", MODELS["S"], "--train", file, "--ignore", "label", "--out", out)
    assert done.exit_code == 0, done.output
    assert "not used: tone" in done.output
    assert AgentSettings.from_toml(out).ignore_columns == ("label",)
    shown = tessera("data", "--config", out).output
    assert "not used: tone" in shown
    counts = json.loads(tessera("data", "--config", out, "--json").stdout)
    assert counts["remarks"] == ["not used: tone"]
    shares = [counts[name] for name in ("train", "validation", "test")]
    assert [part["share"] for part in shares] == [f"{part['examples'] / 9:.0%}" for part in shares]


def test_control_characters_are_printed_as_escapes(tmp_path: Path) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "silo.toml"
    rows = [{"prompt": f"\x1b[2J{i}\u202e", "completion": f"a\x07\x9b{i}"} for i in range(9)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tessera("init", "--model", MODELS["S"], "--train", file, "--out", out)
    shown = tessera("data", "--config", out, "--examples", "9").output
    assert not {"\x1b", "\u202e", "\x07", "\x9b"} & set(shown)
    assert "\\x1b[2J" in shown
    assert "a\\x07\\x9b" in shown


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    rows = [{"text": f"Who built mill {n}?", "kind": n % 3} for n in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize(
    ("choices", "answers"),
    [
        (("--options", "person,place,number"), {"person", "place", "number"}),
        (("--options", "0=human,1=place,2=human"), {"human", "place"}),
        ((), {"0", "1", "2"}),
    ],
)
def test_init_writes_a_template_that_data_shows(
    questions: Path, tmp_path: Path, choices: tuple[str, ...], answers: set[str]
) -> None:
    out = tmp_path / "silo.toml"
    options = ("--template", r"Question: {text}\nIt asks for a", "--answer", "{kind}", *choices)
    done = tessera("init", "--model", MODELS["S"], "--train", questions, *options, "--out", out)
    assert done.exit_code == 0, done.output
    assert "20 examples of this template" in done.output
    shown = tessera("data", "--config", out, "--examples", "20").output
    assert set(re.findall(r"Question: Who built mill \d+\?\nIt asks for a» (.+)<eos>«", shown)) == answers


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--template", "mnli"), "mnli is a built-in template; pass it as --format mnli"),
        (("--template", "{text}"), "--template needs --answer"),
        (("--answer", "{kind}"), "add --template PROMPT"),
        (
            ("--template", "{text}", "--answer", "{kind}", "--format", "text"),
            "its braces name the columns; leave both out",
        ),
        (("--template", "What?", "--answer", "{kind}"), "--template is the same for every row"),
        (("--template", "{text}", "--answer", "{kind}", "--options", "yes"), "--options needs two different"),
        (("--template", "{texts}", "--answer", "{kind}"), "column texts is missing, and text is similar"),
    ],
)
def test_init_refuses_a_template_that_is_unclear(
    questions: Path, tmp_path: Path, arguments: tuple[str, ...], error: str
) -> None:
    out = tmp_path / "silo.toml"
    done = tessera("init", "--model", MODELS["S"], "--train", questions, *arguments, "--out", out)
    assert done.exit_code == 1
    assert error in " ".join(done.output.split())
    assert not out.exists()
