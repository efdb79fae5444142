"""Assignment of tasks to silos by keyword, by category or by a file, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client_agent.errors import StudyUnusable
from studies.partition import draw_examples
from studies.partition_record import describe_partition
from studies.study import Study, read_study
from tests.unit.studies.instruction_rows import (
    CATEGORIES,
    KEYWORDS,
    TASKS,
    rows_of,
    study,
    write_rows,
    write_study,
    write_task_files,
)

BOAT, BACKWARDS, QUERY, CARGO, CREW = TASKS
BY_CLIENT = '[partition]\nkind = "by_client"\nfile = "clients.json"\n'
BY_FILE = CATEGORIES + 'file = "clients.json"\n'


def tasks_of(read: Study, seed: int = 0) -> list[set[str]]:
    """Return the tasks of every silo's examples, on all sides."""
    drawn = draw_examples(read, seed).values()
    return [{e.task.name for e in data.all if e.task is not None} for data in drawn]


def test_keywords_choose_tasks_by_their_definitions(tmp_path: Path) -> None:
    read = study(tmp_path, KEYWORDS, silos=9)
    code, language, answers = (tasks_of(read)[first::3] for first in range(3))
    assert code == [{QUERY}] * 3
    assert sorted(language, key=min) == [{BOAT}, {BACKWARDS}, {CREW}]  # CREW is of two: the first one counts
    assert answers == [{CARGO}] * 3
    assert [silo.group for silo in read.silo] == ["code", "language", "answers"] * 3


def test_a_keyword_inside_a_word_does_not_match(tmp_path: Path) -> None:
    with pytest.raises(StudyUnusable, match=r"no definition has a word that begins with 'argo'.*task1_boat"):
        draw_examples(study(tmp_path, KEYWORDS + 'cargo = ["argo"]\n'), 0)


def test_categories_of_task_files_choose_tasks(tmp_path: Path) -> None:
    write_task_files(tmp_path / "tasks", range(30))
    source = 'train = "tasks"\n'
    read = read_study(write_study(tmp_path, CATEGORIES + "tasks_per_category = 2\n", source=source))
    assert tasks_of(read) == [{BOAT, BACKWARDS}, {CARGO, CREW}] * 2


def test_a_file_can_name_the_tasks_of_categories(tmp_path: Path) -> None:
    categories = {"Translation": [BOAT, "task9_elsewhere"], "Question Answering": [CREW], "Code": [QUERY]}
    (tmp_path / "clients.json").write_text(json.dumps(categories))
    assert tasks_of(study(tmp_path, BY_FILE)) == [{BOAT}, {CREW}] * 2


def test_a_file_can_name_the_tasks_of_silos(tmp_path: Path) -> None:
    expected = {"silo-0": [BOAT], "silo-1": [CREW, QUERY], "silo-2": [QUERY]}
    (tmp_path / "clients.json").write_text(json.dumps(expected))
    read = study(tmp_path, BY_CLIENT, silos=3)
    assert tasks_of(read) == [set(tasks) for tasks in expected.values()]
    record = describe_partition(read, 0)
    assert set(record.silos["silo-1"].train) == {CREW, QUERY}


def test_a_silo_can_name_its_categories(tmp_path: Path) -> None:
    file = write_study(tmp_path, KEYWORDS, 2)
    write_rows(tmp_path / "rows")
    file.write_text(file.read_text() + '\ncategories = ["answers", "code"]\ngroup = "cargo"\n')
    read = read_study(file)
    assert tasks_of(read) == [{QUERY}, {CARGO, QUERY}]
    assert [silo.group for silo in read.silo] == ["code", "cargo"]


def test_assignment_is_deterministic_without_repeated_examples(tmp_path: Path) -> None:
    read = study(tmp_path, KEYWORDS, silos=6)
    assert draw_examples(read, 3) == draw_examples(read, 3)
    assert len({tuple(map(tuple, tasks_of(read, seed))) for seed in range(6)}) > 1
    data = draw_examples(read, 0)
    dealt = [e.key for silo in data.values() for e in (*silo.train, *silo.validation)]
    tested = {e.key for silo in data.values() for e in silo.test}
    assert len(set(dealt)) == len(dealt) == 6 * 8
    assert not tested & set(dealt)


@pytest.mark.parametrize(
    ("partition", "content", "message"),
    [
        (KEYWORDS + 'late = ["sql"]\n', "", r"late is empty: its tasks \(task3_.*before it; change.*task5"),
        (KEYWORDS.replace('"by_keyword"', '"by_keyword"\ntasks_per_category = 2'), "", "code has 1 tasks"),
        (CATEGORIES, "", "the rows have no column categories.*partition.file"),
        (BY_FILE, {"Translations": [BOAT]}, r"no category Translation in .*\(Translations is similar\)"),
        (
            BY_FILE,
            {"Translation": ["task9"], "Question Answering": [CREW]},
            r"of the tasks of Translation, task9, .*tasks are task1_boat",
        ),
        (BY_CLIENT, {"silo-0": [BOAT]}, r"no tasks for silo silo-1; add"),
        (BY_CLIENT, {"silo-0": [BOAT], "silo-1": []}, r"silo silo-1 has no tasks; name one"),
        (BY_CLIENT, {"silo-0": ["task1_boats"], "silo-1": [BOAT]}, r"task1_boats.*task1_boat_.*is similar"),
        (BY_CLIENT, {"silo-0": [BOAT], "silo-1": [BOAT], "x": [BOAT]}, r"tasks for x.*silos are silo-0, sil"),
        (BY_CLIENT, {"silo-0": BOAT}, "silo-0 must have a list of tasks"),
        (BY_CLIENT, {"silo-0": [BOAT, BOAT]}, "silo-0 has a task twice"),
        (BY_CLIENT, [BOAT], "must be an object such as"),
    ],
)
def test_tasks_that_cannot_be_assigned_are_refused(
    tmp_path: Path, partition: str, content: object, message: str
) -> None:
    (tmp_path / "clients.json").write_text(json.dumps(content))
    with pytest.raises(StudyUnusable, match=message):
        draw_examples(study(tmp_path, partition, silos=2), 0)


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ('{"a": [], "a": []}', "a key twice")])
def test_an_unreadable_file_of_tasks_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "clients.json").write_text(text)
    with pytest.raises(StudyUnusable, match=message):
        draw_examples(study(tmp_path, BY_CLIENT), 0)
    (tmp_path / "clients.json").unlink()
    with pytest.raises(StudyUnusable, match="cannot be read"):
        draw_examples(study(tmp_path, BY_CLIENT), 0)


def test_a_category_of_no_task_file_is_refused(tmp_path: Path) -> None:
    write_task_files(tmp_path / "tasks", range(10))
    partition = CATEGORIES.replace('"Translation"', '"Fishing"')
    with pytest.raises(StudyUnusable, match="no category Fishing in the rows; there are Code, Question Answ"):
        draw_examples(read_study(write_study(tmp_path, partition, source='train = "tasks"')), 0)


def test_a_task_without_test_examples_is_refused(tmp_path: Path) -> None:
    read = study(tmp_path, KEYWORDS)
    tests = [row for task in (BOAT, BACKWARDS, CARGO, CREW) for row in rows_of(task, range(100, 108))]
    (tmp_path / "rows" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tests))
    with pytest.raises(StudyUnusable, match=f"silo-0 has the task {QUERY}, and there are no test examples"):
        draw_examples(read, 0)


def test_rows_without_tasks_are_refused(tmp_path: Path) -> None:
    read = study(tmp_path, KEYWORDS)
    rows = [{k: v for k, v in row.items() if k != "task_name"} for row in rows_of(BOAT, range(20))]
    (tmp_path / "rows" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(StudyUnusable, match=r"source instructions have no tasks.*task_name"):
        draw_examples(read, 0)


@pytest.mark.parametrize(
    ("partition", "silo", "message"),
    [
        (KEYWORDS, 'categories = ["fish"]', "silo-1 has the category fish, and those of the partition are c"),
        (KEYWORDS, 'categories = ["code", "code"]', "silo-1 has a category twice"),
        (BY_CLIENT, 'categories = ["code"]', "which need a partition by_keyword or by_category"),
        (CATEGORIES.replace("Question Answering", "Translation"), "", "a category is named twice"),
        (KEYWORDS.replace('["sql"]', "[]"), "", r"partition\.keywords\.code"),
        (KEYWORDS.replace('["sql"]', '[" "]'), "", r"partition\.keywords\.code"),
    ],
)
def test_inconsistent_partition_and_silo_options_are_refused(
    tmp_path: Path, partition: str, silo: str, message: str
) -> None:
    file = write_study(tmp_path, partition, 2)
    file.write_text(f"{file.read_text()}\n{silo}\n")
    with pytest.raises(StudyUnusable, match=message):
        read_study(file)
