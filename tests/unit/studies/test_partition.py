"""Silos with one pool: different examples, drawn by the seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client_agent.errors import StudyUnusable
from client_agent.training.data import load_data
from studies.partition import draw_examples
from studies.pools import open_pool, place_of
from tests.scene.agent_processes import EXAMPLES
from tests.scene.real_rows import read_studies
from tests.scene.studies import keys_of, silo_table, study

SILOS = (
    silo_table("aster", examples=4),
    silo_table("birch", examples=7),
    silo_table("cedar", task="flip", examples=3),
)


def test_silos_of_one_pool_share_no_example(tmp_path: Path) -> None:
    data = draw_examples(study(tmp_path, *SILOS), 0)
    keys = {name: [e.key for e in silo_data.train] for name, silo_data in data.items()}
    assert {name: len(silo_data) for name, silo_data in keys.items()} == {"aster": 4, "birch": 7, "cedar": 3}
    assert len({key for silo_data in keys.values() for key in silo_data}) == 14
    assert all(e.prompt.startswith("FLIP") for e in data["cedar"].train)


def test_the_draw_is_determined_by_its_seed(tmp_path: Path) -> None:
    read = study(tmp_path, *SILOS)
    assert draw_examples(read, 3) == draw_examples(read, 3)
    assert set(draw_examples(read, 3)["birch"].train) != set(draw_examples(read, 4)["birch"].train)


def test_a_larger_draw_contains_the_smaller_one(tmp_path: Path) -> None:
    read = study(tmp_path, *SILOS).with_examples(4)
    more = draw_examples(read.with_examples(8), 0)
    for name, silo_data in draw_examples(read, 0).items():
        assert more[name].train[:4] == silo_data.train


def test_test_items_have_their_count_outside_of_training(tmp_path: Path) -> None:
    data = draw_examples(study(tmp_path, *SILOS), 0)
    trained = {e.key for silo_data in data.values() for e in silo_data.train}
    for silo_data in data.values():
        assert len(silo_data.test) == 8
        assert not trained & {e.key for e in silo_data.test}
    assert data["aster"].test != data["birch"].test


def silo_of(name: str, train: str, test: str | None, examples: int = 4) -> str:
    table = silo_table(name, train=train, test=test or "", examples=examples)
    return table if test is not None else table.replace('test = ""\n', "")


@pytest.mark.parametrize(
    "silos",
    [
        (
            silo_of("aster", "copy/train.jsonl", "copy/test.jsonl", 8),
            silo_of("birch", "copy/train.jsonl", None),
        ),
        (
            silo_of("aster", "copy/train.jsonl", None),
            silo_of("birch", "copy/train.jsonl", "flip/test.jsonl", 8),
        ),
        (silo_of("aster", "copy/train.jsonl", "copy/train.jsonl"), silo_of("birch", "copy", None)),
        (silo_of("aster", "flip/test.jsonl", None), silo_of("birch", "copy/train.jsonl", "flip/test.jsonl")),
    ],
    ids=["with and without a test file", "without and with", "train is test", "another's test file"],
)
@pytest.mark.parametrize("seed", range(3))
def test_training_excludes_the_test_items_of_all_silos(
    tmp_path: Path, silos: tuple[str, ...], seed: int
) -> None:
    data = draw_examples(study(tmp_path, *silos), seed)
    tested = {e.key for silo_data in data.values() for e in silo_data.test}
    trained = [e.key for silo_data in data.values() for e in silo_data.train]
    assert tested
    assert not tested & set(trained)
    assert len(trained) == len(set(trained)) == sum(len(silo_data.train) for silo_data in data.values())


def test_training_excludes_held_out_rows_of_the_file(tmp_path: Path) -> None:
    read = study(
        tmp_path,
        silo_of("aster", "copy/train.jsonl", "copy/test.jsonl"),
        silo_of("birch", "copy/train.jsonl", None),
    )
    held_out = {e.key for e in load_data(read.silo[1].train or "").test}
    left = 20 - len(held_out)
    aster, birch = read.silo
    unpartitioned = read.model_copy(
        update={"silo": [aster.model_copy(update={"examples": left - 4}), birch], "tests": 1, "validation": 0}
    )
    trained = {e.key for silo_data in draw_examples(unpartitioned, 0).values() for e in silo_data.train}
    assert len(trained) == left
    assert not held_out & trained


def test_a_folder_and_its_file_are_one_pool(tmp_path: Path) -> None:
    data = draw_examples(
        study(
            tmp_path,
            silo_of("aster", "copy", None, 8),
            silo_of("birch", "copy/train.jsonl", "copy/test.jsonl", 8),
        ),
        0,
    )
    assert len({e.key for silo_data in data.values() for e in silo_data.train}) == 16


def test_a_pool_used_up_by_test_items_fails(tmp_path: Path) -> None:
    silos = [silo_of(name, "copy/train.jsonl", "copy/train.jsonl", 4) for name in ("aster", "birch")]
    read = study(tmp_path, *silos).model_copy(update={"tests": 20})
    with pytest.raises(
        StudyUnusable,
        match=r"copy/train.jsonl, without test items of .*copy/train.jsonl, has 0 different examples",
    ):
        draw_examples(read, 0)


def test_seeds_have_different_test_items(tmp_path: Path) -> None:
    read = study(tmp_path, *SILOS)
    sets = [frozenset(e.key for e in draw_examples(read, seed)["aster"].test) for seed in range(3)]
    assert len(set(sets)) == 3
    assert {len(items) for items in sets} == {8}


@pytest.mark.slow
def test_shipped_pools_suffice_for_different_test_items(tmp_path: Path) -> None:
    for read in read_studies(tmp_path):
        draws = [draw_examples(read, seed) for seed in read.seeds]
        for data in draws:
            trained = {e.key for silo_data in data.values() for e in silo_data.train}
            assert not trained & {e.key for silo_data in data.values() for e in silo_data.test}
        for silo in read.silo if len(draws) > 1 else ():
            first, second = ({e.key for e in data[silo.name].test} for data in draws[:2])
            assert len(first) == len(second) == read.tests
            assert len(first & second) < read.tests / 2
    sizes = [file.stat().st_size for file in (EXAMPLES / "studies" / "data").rglob("*.jsonl")]
    assert len(sizes) == 8
    assert max(sizes) < 60_000


def test_too_small_pools_are_named_with_their_silos(tmp_path: Path) -> None:
    read = study(tmp_path, *SILOS).with_examples(11)
    with pytest.raises(StudyUnusable, match="has 20 different examples, and aster, birch need 22 and 4 for"):
        draw_examples(read, 0)


def test_validation_examples_are_disjoint_from_all_others(tmp_path: Path) -> None:
    read = study(tmp_path, silo_of("aster", "copy/train.jsonl", "copy/train.jsonl"), *SILOS[1:])
    data = draw_examples(read.model_copy(update={"tests": 3, "validation": 3}), 0)
    chosen = keys_of(data, "validation")
    assert len(chosen) == len(set(chosen)) == 9
    assert not set(chosen) & set(keys_of(data, "train") + keys_of(data, "test"))


def test_validation_sources_are_excluded_from_training(tmp_path: Path) -> None:
    flip = tmp_path / "flip" / "train.jsonl"
    silos = (
        silo_table("aster", validation="flip/train.jsonl", examples=18),
        silo_table("birch", task="flip", examples=10),
    )
    data = draw_examples(study(tmp_path, *silos).model_copy(update={"validation": 5}), 0)
    assert len(data["aster"].validation) == len(data["birch"].validation) == 5
    assert all(e.prompt.startswith("FLIP") for e in data["aster"].validation)
    assert not {e.key for e in data["aster"].validation} & set(keys_of(data, "train"))
    assert {e.key for e in data["birch"].train} < {e.key for e in load_data(flip).train} | {
        e.key for e in load_data(flip).test
    } | {e.key for e in load_data(flip).validation}


def test_an_example_in_two_files_is_dealt_once(tmp_path: Path) -> None:
    read = study(
        tmp_path, silo_table("aster", examples=4), silo_table("birch", train="twin.jsonl", examples=4)
    )
    lines = (tmp_path / "copy" / "train.jsonl").read_text().splitlines()
    more = [json.dumps({"prompt": f"TWIN {i}=", "completion": "t"}) for i in range(6)]
    (tmp_path / "twin.jsonl").write_text("\n".join(lines + more))
    data = draw_examples(read, 0)
    assert all(e.prompt.startswith("TWIN") for e in data["birch"].train)
    with pytest.raises(StudyUnusable, match=r"twin\.jsonl has 6 different examples, and birch need 7 and 2"):
        draw_examples(read.with_examples(7), 0)


def test_validation_can_be_empty(tmp_path: Path) -> None:
    data = draw_examples(study(tmp_path, *SILOS).model_copy(update={"validation": 0}), 0)
    assert keys_of(data, "validation") == []


def test_a_source_with_two_options_is_refused(tmp_path: Path) -> None:
    read = study(tmp_path, silo_table("aster"), silo_table("birch", skip_bad_rows=True))
    with pytest.raises(StudyUnusable, match=r"silos aster and birch read .*copy/train.jsonl with different"):
        draw_examples(read, 0)


def test_silos_have_their_own_template_columns_and_metrics(tmp_path: Path) -> None:
    rows = [{"text": f"Is {i} even?", "context": "Numbers.", "label": i % 2 == 0} for i in range(40)]
    (tmp_path / "parity.json").write_text(json.dumps(rows))
    columns = '[silo.columns]\nquestion = "text"\npassage = "context"\nanswer = "label"\n'
    table = silo_table("aster", train="parity.json", format="boolq", metrics=["exact_match"]) + columns
    read = study(tmp_path, table.replace('test = "copy/test.jsonl"\n', ""), silo_table("birch"))
    data = draw_examples(read, 0)
    assert {e.completion for e in data["aster"].train} <= {" yes", " no"}
    assert {e.metrics for e in data["aster"].test} == {("exact_match",)}


def test_a_folder_may_contain_a_validation_file(tmp_path: Path) -> None:
    read = study(tmp_path, silo_of("aster", "copy", None), silo_table("birch"))
    (tmp_path / "copy" / "validation.jsonl").write_text('{"prompt": "V", "completion": "v"}\n')
    assert [e.prompt for e in open_pool(place_of(read.silo[0])).validation or ()] == ["V"]
    assert [e.prompt for e in draw_examples(read, 0)["aster"].validation] == ["V"]
