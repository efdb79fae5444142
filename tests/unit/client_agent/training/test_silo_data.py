"""A silo's files: accepted and refused rows, and the division into sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from unicodedata import normalize

import pytest

from client_agent.data.load import load_examples
from client_agent.errors import DataInvalid
from client_agent.model.examples import Example, MetricName, Turn
from client_agent.settings import AgentSettings
from client_agent.training.data import SiloData, load_data, with_test, with_validation, without_held_out
from client_agent.training.silo import load_silo_data

nfd = partial(normalize, "NFD")


def written(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def rows(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"p{i}", "completion": f"c{i}"} for i in range(count)]


def test_prompts_and_chats_are_read(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    file = written(tmp_path / "a.jsonl", {"prompt": "é", "completion": "b", "more": 1}, {"messages": chat})
    file.write_text(file.read_text(encoding="utf-8") + "\n  \n", encoding="utf-8")
    examples = (Example("é", "b"), Example("", "yes", (Turn("user", "hi"),)))
    assert load_examples(str(file)).examples == examples


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"prompt": "a"}', "those of no format"),
        ('{"prompt": "", "completion": "b"}', "column prompt is empty"),
        ('{"prompt": "a", "completion": 3}', "column completion is not a text but 3"),
        ('{"messages": []}', "column messages is not a list of objects"),
        ('{"messages": [1, 2]}', r"column messages\[0\] is not an object but 1"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "does not end with an assistant's answer"),
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}', "assistant"),
        ('{"messages": [{"role": "user"}, {"role": "assistant", "content": "b"}]}', "content is missing"),
    ],
)
def test_bad_line_is_named_by_file_and_number(tmp_path: Path, line: str, trouble: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"prompt": "a", "completion": "b"}\n\n' + line + "\n", encoding="utf-8")
    with pytest.raises(DataInvalid, match=rf"bad\.jsonl line 3.*{trouble}"):
        load_examples(str(file))


def test_unreadable_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataInvalid, match="cannot be read"):
        load_examples(str(tmp_path / "none.jsonl"))
    with pytest.raises(DataInvalid, match="no example"):
        load_examples(str(written(tmp_path / "empty.jsonl")))
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(DataInvalid, match="UTF-8"):
        load_examples(str(tmp_path / "latin.jsonl"))


def test_examples_keep_their_set_when_others_are_added(tmp_path: Path) -> None:
    few = load_data(written(tmp_path / "few.jsonl", *rows(60)))
    many = load_data(written(tmp_path / "many.jsonl", *reversed(rows(300))))
    assert set(few.train) <= set(many.train)
    assert set(few.validation) <= set(many.validation)
    assert set(few.test) <= set(many.test)
    assert 30 <= len(many.test) <= 90
    assert 10 <= len(many.validation) <= 40


def test_repeated_example_is_in_one_set_only(tmp_path: Path) -> None:
    data = load_data(written(tmp_path / "twice.jsonl", *rows(60), *rows(60)))
    for first, second in combinations((data.train, data.validation, data.test), 2):
        assert not set(first) & set(second)
    assert len(data.train) + len(data.validation) + len(data.test) == 120


@pytest.mark.parametrize("change", [str.upper, lambda text: f" {text.replace(' ', '  ')}", nfd])
def test_prompts_equal_but_for_form_share_a_set(tmp_path: Path, change: Callable[[str], str]) -> None:
    """A prompt that differs by case, spaces or Unicode form is the same prompt, whatever its answer."""
    prompts = [f"café number {i}" for i in range(60)]
    records = [{"prompt": prompt, "completion": "yes"} for prompt in prompts]
    twins = [{"prompt": change(prompt), "completion": "no"} for prompt in prompts]
    data = load_data(written(tmp_path / "a.jsonl", *records, *twins))
    sets = [{example.prompt_key for example in part} for part in (data.train, data.validation, data.test)]
    assert all(sets)
    assert sum(map(len, sets)) == len(set.union(*sets)) == 60
    assert len(data.all) == 120


def test_examples_without_twins_keep_their_set() -> None:
    """The split of data without twins is by each example's own digest."""
    examples = tuple(Example(f"p{i}", f"c{i}") for i in range(100))
    _, tests = with_test(examples, "x")
    assert {e.key for e in tests} == {e.key for e in examples if int(e.key[:8], 16) < 0.2 * 2**32}


def test_answers_to_one_prompt_are_divided() -> None:
    """Prompts that are all equal cannot divide the examples."""
    training, tests = with_test(tuple(Example("Write a poem.", f"poem {i}") for i in range(100)), "x")
    assert min(len(training), len(tests)) > 5


def test_private_training_leaves_out_held_out_prompts() -> None:
    train = (Example("a b", "c"), Example("A  b", "d"), Example("e", "f"), Example("g", "h"))
    data = SiloData(train, (Example("G", "h"),), (Example("a b", "c"),))
    assert without_held_out(data).train == (Example("e", "f"),)
    assert without_held_out(replace(data, validation=(), test=())).train == train
    with pytest.raises(DataInvalid, match="every training example has the prompt of"):
        without_held_out(replace(data, train=train[:1]))


def test_private_training_on_one_prompt_keeps_other_answers() -> None:
    train = (Example("Write a poem.", "c"), Example("Write a poem.", "d"))
    data = SiloData(train, (), (Example("Write a poem.", "c"),))
    assert without_held_out(data).train == train[1:]


def test_few_prompts_are_in_one_set_each(tmp_path: Path) -> None:
    lines = [{"prompt": f"prompt {i % 5}", "completion": f"answer {i}"} for i in range(200)]
    data = load_data(written(tmp_path / "all.jsonl", *lines))
    prompts = [{e.prompt for e in examples} for examples in (data.train, data.validation, data.test)]
    assert prompts[0]
    assert prompts[2]
    assert sum(map(len, prompts)) == 5


def test_test_set_does_not_depend_on_validation(tmp_path: Path) -> None:
    file = written(tmp_path / "all.jsonl", *rows(200))
    without, data = load_data(file, validation_share=0), load_data(file)
    assert data.test == without.test
    assert without.validation == ()
    assert {*data.train, *data.validation} == set(without.train)


def test_validation_set_is_taken_from_training_file(
    tmp_path: Path,
) -> None:
    train, test = written(tmp_path / "a.jsonl", *rows(100)), written(tmp_path / "b.jsonl", *rows(120)[100:])
    data = load_data(train, test)
    assert (len(data.train) + len(data.validation), len(data.test)) == (100, 20)
    assert 3 <= len(data.validation) <= 20
    assert load_data(train, test, validation=test).validation == data.test


def test_single_training_example_gives_no_validation_set() -> None:
    only = (Example("p", "c"),)
    assert with_validation(only, 1.0) == (only, ())


def test_given_test_and_validation_files_are_kept_whole(tmp_path: Path) -> None:
    train, test = written(tmp_path / "train.jsonl", *rows(5)), written(tmp_path / "test.jsonl", *rows(2))
    validation = written(tmp_path / "validation.jsonl", *rows(3))
    for data in (load_data(train, test, validation=validation), load_data(tmp_path)):
        assert (len(data.train), len(data.validation), len(data.test)) == (5, 3, 2)


def test_five_different_examples_give_a_test_example() -> None:
    sources = [[Example("p", f"{source} {i}") for i in range(5)] for source in range(40)]
    for examples in sources:
        training, tests = with_test((*examples, *examples), "rows.jsonl")
        assert training
        assert tests
        assert set(training) | set(tests) == set(examples)
        assert not set(training) & set(tests)
        if not any(int(e.key[:8], 16) < 0.2 * 2**32 for e in examples):
            assert {e.key for e in tests} == {min(e.key for e in examples)}
    assert all(with_test(tuple(examples), "rows.jsonl", 0.999)[0] for examples in sources)


@pytest.mark.parametrize(
    ("examples", "fact"),
    [
        ([Example("p", "c")], r"has too few examples \(1\)"),
        ([Example("p", "c")] * 40, r"has too few examples \(40\).*they are equal"),
        ([Example("p", str(i)) for i in (0, 1, 2, 4)], r"has too few examples \(4\).*until 5 are different"),
    ],
)
def test_test_set_without_enough_examples_is_refused(examples: list[Example], fact: str) -> None:
    with pytest.raises(DataInvalid, match=fact):
        with_test(tuple(examples), "rows.jsonl", 0.001)


@pytest.mark.parametrize(
    ("record", "metric", "fault"),
    [
        ({"prompt": "p", "completion": "c"}, "option_accuracy", "without options"),
        ({"text": "a raw text"}, "exact_match", "raw text"),
    ],
)
def test_metrics_unfit_for_test_examples_are_refused(
    tmp_path: Path, record: dict[str, str], metric: MetricName, fault: str
) -> None:
    file = written(tmp_path / "rows.jsonl", record)
    settings = AgentSettings(url="http://127.0.0.1:1", model="m", train=str(file), test=str(file))
    assert len(load_silo_data(settings).test) == 1
    with pytest.raises(DataInvalid, match=f"metrics: {metric} .*{fault}"):
        load_silo_data(settings.model_copy(update={"metrics": (metric,)}))
    scored = settings.model_copy(update={"metrics": ("f1",), "format": None})
    file.write_text(json.dumps({"prompt": "p", "completion": "c"}))
    assert load_silo_data(scored).test[0].metrics == ("f1",)
