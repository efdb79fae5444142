"""Streams of rows from the hub: one by one, and stored for the needed tasks only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from client_agent.data.load import RowOptions, load_examples
from client_agent.errors import AgentError, DataInvalid, StudyUnusable
from studies import streamed_tasks
from studies.compare import Comparison
from studies.partition import draw_examples
from studies.streamed_tasks import with_streams
from studies.study import Study, read_study
from tests.unit.studies.instruction_rows import (
    CATEGORIES,
    KEYWORDS,
    TASKS,
    write_rows,
    write_study,
    write_task_files,
)

BOAT, BACKWARDS, QUERY, CARGO, CREW = TASKS
BY_CLIENT = '[partition]\nkind = "by_client"\nfile = "clients.json"\n'
CLIENTS = {"silo-0": [BACKWARDS], "silo-1": [BOAT], "silo-2": [BOAT]}


def streamed(folder: Path, partition: str = BY_CLIENT, *, stream: str = "", source: str = "") -> Study:
    """Write a study of three silos that streams a stand-in for the hub: a folder that `datasets` streams."""
    if not (folder / "hub").exists():
        write_rows(folder / "hub")
    (folder / "clients.json").write_text(json.dumps(CLIENTS))
    source = source or f'train = "hub:{folder}/hub"\ntest = "hub:{folder}/hub:test"\n'
    source += f"stream = {{{stream or 'rows_per_task = 16'}}}\n"
    return read_study(write_study(folder, partition, 3, source=source))


def counts(file: str) -> dict[str, int]:
    rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
    names = [row["task_name"] for row in rows]
    return {name: names.count(name) for name in sorted(set(names))}


def test_a_stream_ends_with_the_last_needed_row(tmp_path: Path) -> None:
    lines: list[str] = []
    (source,) = with_streams(streamed(tmp_path), tmp_path / "out", lines.append).source
    assert counts(source.train) == {BOAT: 16, BACKWARDS: 16}
    assert source.test is not None
    assert counts(source.test) == {BOAT: 8, BACKWARDS: 8}
    assert source.stream is None
    assert lines == [  # of 150 rows, 30 of each task
        f"hub:{tmp_path}/hub: 46 rows read; of 2 tasks 2 met, 2 with all 16 rows",
        f"hub:{tmp_path}/hub:test: 40 rows read; of 2 tasks 2 met, 0 with all 16 rows",
    ]


def test_stored_rows_are_reused_for_the_same_need(tmp_path: Path) -> None:
    read = streamed(tmp_path)
    comparison = Comparison.planned(read, tmp_path / "out", ["local_lora"], [0])
    shutil.rmtree(tmp_path / "hub")
    again = Comparison.planned(read, tmp_path / "out", ["local_lora"], [0])
    assert again.cells == comparison.cells
    drawn = draw_examples(again.study, 0)
    assert {e.task.name for e in drawn["silo-0"].all if e.task is not None} == {BACKWARDS}
    write_rows(tmp_path / "hub")
    (source,) = with_streams(streamed(tmp_path, stream="rows_per_task = 20"), tmp_path / "out").source
    assert counts(source.train) == {BOAT: 20, BACKWARDS: 20}


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (KEYWORDS, {BOAT, QUERY, CARGO}),  # the first task of each category in the stream
        (CATEGORIES + 'file = "categories.json"\n', {BOAT, BACKWARDS, CREW}),
    ],
)
def test_a_stream_stores_the_needed_tasks_of_categories(
    tmp_path: Path, partition: str, expected: set[str]
) -> None:
    categories = {"Translation": [BACKWARDS, BOAT, CARGO], "Question Answering": [CREW, "task9"]}
    (tmp_path / "categories.json").write_text(json.dumps(categories))
    read = streamed(tmp_path, partition)
    (source,) = with_streams(read, tmp_path / "out").source
    assert counts(source.train).keys() == expected
    draw_examples(read.model_copy(update={"source": [source]}), 0)


def test_task_files_are_read_only_where_needed(tmp_path: Path) -> None:
    write_task_files(tmp_path / "tasks", range(30))
    (tmp_path / "tasks" / "task99_damaged.json").write_text("{")
    read = streamed(tmp_path, CATEGORIES, source='train = "tasks"\n')
    (source,) = with_streams(read, tmp_path / "out").source
    assert counts(source.train) == {BOAT: 16, BACKWARDS: 16, CARGO: 16}
    options = RowOptions("natural_instructions")
    tasks = {e.task for e in load_examples(source.train, options).examples}
    assert {category for task in tasks if task is not None for category in task.categories} == {
        "Translation",
        "Question Answering",
    }


@pytest.mark.parametrize(
    ("partition", "stream", "message"),
    [
        (BY_CLIENT, "most_rows = 20", r"no row of the task task2_.* first 20 rows; raise stream\.most_rows"),
        (BY_CLIENT, "most_rows = 20", r"name their folder as train\. Needed tasks that were met: task1_boat"),
        (KEYWORDS + 'fish = ["herring"]', "", r"0 of 1 tasks of the category fish in the first 150 rows; it"),
        (CATEGORIES, "", "the rows have no column categories"),
        (CATEGORIES + 'file = "clients.json"\n', "", r"no category Translation in .*silo-0"),
    ],
)
def test_tasks_missing_in_a_stream_are_refused(
    tmp_path: Path, partition: str, stream: str, message: str
) -> None:
    with pytest.raises(StudyUnusable, match=message):
        with_streams(streamed(tmp_path, partition, stream=stream), tmp_path / "out")


def test_bad_rows_in_streams_are_refused_or_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_tasks, "_REPORT_EVERY", 20)
    read = streamed(tmp_path)
    file = tmp_path / "hub" / "train.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[3]["task_name"] = None
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataInvalid, match=r"hub row 4: column task_name"):
        with_streams(read, tmp_path / "out")
    lines: list[str] = []
    skipping = [source.model_copy(update={"skip_bad_rows": True}) for source in read.source]
    with_streams(read.model_copy(update={"source": skipping}), tmp_path / "out", lines.append)
    assert lines[0].endswith("hub: 20 rows read; of 2 tasks 1 met, 1 with all 16 rows")


def test_an_unreadable_hub_is_a_data_error(tmp_path: Path) -> None:
    read = streamed(tmp_path)
    lines = (tmp_path / "hub" / "train.jsonl").read_text().splitlines()
    (tmp_path / "hub" / "train.jsonl").write_text("\n".join([*lines[:40], "{", *lines[40:]]))
    with pytest.raises(AgentError, match="hub: cannot be read"):
        with_streams(read, tmp_path / "out")
    (tmp_path / "hub" / "train.jsonl").unlink()
    with pytest.raises(DataInvalid, match="hub: cannot be read"):
        with_streams(read, tmp_path / "out")


def test_a_stream_needs_tasks_and_their_partition(tmp_path: Path) -> None:
    with pytest.raises(StudyUnusable, match="source instructions has a stream, which needs a partition by_k"):
        streamed(tmp_path, '[partition]\nkind = "by_task"\n')
    file = tmp_path / "study.toml"
    file.write_text(file.read_text().replace('format = "natural_instructions"', 'format = "alpaca"'))
    with pytest.raises(StudyUnusable, match='needs format = "natural_instructions"'):
        read_study(file)
