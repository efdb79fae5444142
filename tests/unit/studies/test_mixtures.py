"""Partitions of pooled sources among silos: by Dirichlet proportions, by task, by size."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from client_agent.errors import StudyUnusable
from studies.mixtures import dirichlet, sizes_of
from studies.partition import draw_examples
from studies.partition_record import describe_partition
from studies.study import Study, read_study
from tests.scene.agent_processes import MODELS
from tests.scene.studies import keys_of

TASKS = ("colour", "shape", "size")


def write(folder: Path, partition: str, silos: int = 4, examples: int = 8, more: str = "") -> Study:
    """Write a study of silos that share three tasks: two with three labels, one with texts of its own."""
    for task in TASKS:
        for side, count in (("train", 90), ("test", 30)):
            rows = [
                {
                    "prompt": f"{task} {side} {i}:",
                    "completion": f" {i}" if task == "size" else f" {task}{i % 3}",
                }
                for i in range(count)
            ]
            file = folder / task / f"{side}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = [f"[[silo]]\nname = 'silo-{i}'" for i in range(silos)]
    sources = [f"[[source]]\nname = '{task}'\ntrain = '{task}'" for task in TASKS]
    head = f"tests = 12\nvalidation = 3\nseeds = [0]\n{more}\n[defaults]\nmodel = '{MODELS['S']}'\n"
    file = folder / "study.toml"
    file.write_text("\n".join([head + f"examples = {examples}", "[partition]", partition, *sources, *names]))
    return read_study(file)


DIRICHLET = 'kind = "dirichlet"\nalpha = 0.3'
PARTITIONS = (DIRICHLET, 'kind = "by_task"', 'kind = "by_size"\npower = 1.0')


def label(completion: str) -> str:
    return "size" if completion.strip().isdigit() else completion.strip()


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_partition_assigns_an_example_at_most_once(tmp_path: Path, partition: str, seed: int) -> None:
    data = draw_examples(write(tmp_path, partition), seed)
    train, validation, test = (keys_of(data, side) for side in ("train", "validation", "test"))
    assert len(train) == 4 * 8
    assert len(validation) == 4 * 3
    assert {len(silo_data.test) for silo_data in data.values()} == {12}
    assert len(set(train + validation)) == len(train) + len(validation)
    assert not set(train + validation) & set(test)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_partition_is_determined_by_its_seed(tmp_path: Path, partition: str) -> None:
    read = write(tmp_path, partition)
    assert draw_examples(read, 0) == draw_examples(read, 0)
    assert set(keys_of(draw_examples(read, 0), "train")) != set(keys_of(draw_examples(read, 1), "train"))


@pytest.mark.parametrize("partition", PARTITIONS[:2])
def test_a_larger_draw_contains_the_smaller_one(tmp_path: Path, partition: str) -> None:
    read = write(tmp_path, partition)
    fewer, more = (draw_examples(read.with_examples(count), 0) for count in (4, 10))
    for name, silo_data in fewer.items():
        assert more[name].train[:4] == silo_data.train
        assert more[name].validation == silo_data.validation


def test_a_small_alpha_concentrates_the_classes_of_silos(tmp_path: Path) -> None:
    def most_frequent(alpha: float) -> float:
        folder = tmp_path / str(alpha)
        read = write(folder, f'kind = "dirichlet"\nalpha = {alpha}', silos=6, examples=20)
        shares = []
        for silo_data in draw_examples(read, 0).values():
            counts = Counter(label(e.completion) for e in silo_data.train)
            shares.append(max(counts.values()) / 20)
        return float(np.mean(shares))

    assert most_frequent(0.05) > 0.6
    assert most_frequent(100.0) < 0.4


def test_proportions_have_the_mean_and_variance_of_dirichlet() -> None:
    drawn = np.array([list(dirichlet(0.5, "abcd", 0, f"silo-{i}").values()) for i in range(2000)])
    assert np.allclose(drawn.sum(axis=1), 1)
    assert np.allclose(drawn.mean(axis=0), 1 / 4, atol=0.02)
    assert np.allclose(drawn.var(axis=0), (1 / 4) * (3 / 4) / (4 * 0.5 + 1), atol=0.01)


def test_test_items_have_the_classes_of_training(tmp_path: Path) -> None:
    read = write(tmp_path, 'kind = "dirichlet"\nalpha = 0.02\nover = "task"', silos=3)
    for silo_data in draw_examples(read, 0).values():
        train, test = (
            Counter(e.prompt.split()[0] for e in side) for side in (silo_data.train, silo_data.test)
        )
        assert train[test.most_common(1)[0][0]] > sum(train.values()) / 3


@pytest.mark.parametrize("count", [2, 30])
def test_sources_share_validation_examples_equally(tmp_path: Path, count: int) -> None:
    write(tmp_path, 'kind = "by_task"\ntasks_per_silo = 2')
    rows = [json.dumps({"prompt": f"colour validation {i}:", "completion": " colour0"}) for i in range(count)]
    (tmp_path / "colour" / "validation.jsonl").write_text("".join(row + "\n" for row in rows))
    data = draw_examples(read_study(tmp_path / "study.toml"), 0)
    drawn = [[e.prompt.split()[:2] for e in silo_data.validation] for silo_data in data.values()]
    assert [len(silo) for silo in drawn] == [3] * 4
    assert {task for task, _ in (*drawn[0], *drawn[3])} == {"colour", "shape"}
    assert {task for task, _ in drawn[1]} <= {"shape", "size"}
    assert {task for task, _ in drawn[2]} <= {"size", "colour"}
    colours = sorted(side for silo in drawn for task, side in silo if task == "colour")
    assert colours.count("validation") == min(count, len(colours))
    assert {side for silo in drawn for task, side in silo if task != "colour"} == {"train"}


def test_the_partition_by_task_assigns_tasks_in_turn(tmp_path: Path) -> None:
    for count, first, last in ((1, {"colour"}, {"colour"}), (2, {"colour", "shape"}, {"colour", "shape"})):
        read = write(tmp_path, f'kind = "by_task"\ntasks_per_silo = {count}')
        tasks = [
            {e.prompt.split()[0] for e in (*silo_data.train, *silo_data.test)}
            for silo_data in draw_examples(read, 0).values()
        ]
        assert (tasks[0], tasks[3]) == (first, last)
        assert tasks[1] != tasks[0]


def test_sizes_are_named_or_follow_a_power(tmp_path: Path) -> None:
    named = write(tmp_path, 'kind = "by_size"\nsizes = [20, 5, 1, 9]')
    data = draw_examples(named, 0)
    assert [len(silo_data.train) for silo_data in data.values()] == [20, 5, 1, 9]
    assert len({e.prompt.split()[0] for e in data["silo-0"].train}) == 3
    falling = write(tmp_path, 'kind = "by_size"\npower = 1.0', examples=25)
    assert list(sizes_of(falling).values()) == [48, 24, 16, 12]
    with pytest.raises(StudyUnusable, match=r"partition.power 9.0 leaves silo silo-\d without an example"):
        draw_examples(write(tmp_path, 'kind = "by_size"\npower = 9.0'), 0)
    with pytest.raises(StudyUnusable, match=r"partition\.sizes determines the examples"):
        named.with_examples(4)


def test_the_record_counts_the_examples_of_silos(tmp_path: Path) -> None:
    read = write(tmp_path, DIRICHLET)
    record = describe_partition(read, 3)
    assert record == describe_partition(read, 3)
    assert record != describe_partition(read, 4)
    for name, silo_data in draw_examples(read, 3).items():
        counts = Counter(label(e.completion) for e in silo_data.train)
        silo = record.silos[name]
        assert {source.split(": ")[-1]: count for source, count in silo.train.items()} == counts
        assert sum(silo.test.values()) == 12
        assert sum(silo.validation.values()) == 3
    assert record.partition == read.partition
    assert "colour train" not in record.model_dump_json()  # no text of anybody


@pytest.mark.parametrize(
    ("partition", "more", "message"),
    [
        ('kind = "dirichlet"\nalpha = 0', "", "partition.alpha"),
        ('kind = "by_colour"', "", "partition: Input tag 'by_colour'"),
        ('kind = "by_size"', "", "set either sizes or power"),
        ('kind = "by_size"\nsizes = [1, 2]', "", "partition.sizes: 2 sizes for 4 silos"),
        ('kind = "by_task"\ntasks_per_silo = 4', "", "more than the 3 sources"),
    ],
)
def test_an_impossible_partition_is_refused(tmp_path: Path, partition: str, more: str, message: str) -> None:
    with pytest.raises(StudyUnusable, match=message):
        write(tmp_path, partition, more=more)


def test_used_up_sources_are_named_with_the_silo(tmp_path: Path) -> None:
    with pytest.raises(StudyUnusable, match=r"the sources of silo silo-0 are used up: the silos need 176"):
        draw_examples(write(tmp_path, 'kind = "by_task"', examples=44), 0)
