"""`agent generate`: one answer or two side by side, greedy or sampled, and interactive prompts."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import Result

from client_agent.cli.conversation import Conversation, Side
from client_agent.model.examples import Turn, encode_chat, encode_prompt
from client_agent.model.generation import Decoding, completion
from client_agent.model.loading import BaseModel
from tests.scene.agent_commands import tessera
from tests.scene.silo_config import config
from tests.unit.client_agent.model.test_generation import TEMPLATE

PLAN = {
    "name": "alone",
    "strategy": {"name": "fedavg"},
    "rounds": {"total": 1},
    "adapter": {"kind": "lora", "rank": 4, "roles": ["v", "down"]},
    "training": {"steps": 8, "max_length": 64, "learning_rate": 0.05},
}
PROMPT = "CIPHER abcd="


def generate(silo: Path, *arguments: object, typed: str = "") -> Result:
    return tessera("generate", "--config", silo, *arguments, input=typed)


@pytest.fixture(scope="module")
def silo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return config(tmp_path_factory.mktemp("silo"))


@pytest.fixture(scope="module")
def adapter(silo: Path) -> tuple[object, ...]:
    """The options of an adapter that answers otherwise than its base model."""
    plan, file = silo.parent / "plan.json", silo.parent / "adapter.safetensors"
    plan.write_text(json.dumps(PLAN))
    done = tessera("train", "--config", silo, "--plan", plan, "--out", file)
    assert done.exit_code == 0, done.output
    return ("--adapter", file, "--plan", plan, "--variant", "trained")


def test_base_and_adapter_answer_the_same_prompt(silo: Path, adapter: tuple[object, ...]) -> None:
    options = ("--prompt", PROMPT, "--max-new-tokens", 6)
    base = generate(silo, *options, "--base").stdout
    alone = generate(silo, *options, *adapter).stdout
    assert base != alone
    both = generate(silo, *options, *adapter, "--compare")
    assert both.exit_code == 0, both.output
    assert both.stdout == f"--- base model\n{base}--- adapter\n{alone}"
    document = json.loads(generate(silo, *options, *adapter, "--compare", "--json").stdout)
    assert document["prompt"] == PROMPT
    assert [(a["model"], f"{a['text']}\n") for a in document["answers"]] == [
        ("base model", base),
        ("adapter", alone),
    ]
    assert all(a["tokens"] == 6 for a in document["answers"] if a["ended"] == "length")


@pytest.mark.slow
def test_sample_is_repeatable_by_its_seed(silo: Path) -> None:
    def sample(seed: int) -> str:
        options = ("--temperature", 1.5, "--top-p", 0.9, "--seed", seed, "--max-new-tokens", 12)
        return generate(silo, "--prompt", PROMPT, "--base", *options).stdout

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(1, 6)}) > 1


def test_answer_ends_before_a_stop_text(silo: Path) -> None:
    options = ("--prompt", PROMPT, "--base", "--json")
    whole = json.loads(generate(silo, *options, "--max-new-tokens", 12).stdout)["answers"][0]["text"]
    stop = whole[-2:]
    ended = json.loads(generate(silo, *options, "--stop", "never", "--stop", stop).stdout)["answers"][0]
    assert ended["text"] == whole[: whole.index(stop)]
    assert ended["ended"] == "stop"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "pass --prompt TEXT, or --interactive"),
        (("--prompt", "x", "--base", "--compare"), "leave out --base"),
        (("--interactive", "--json"), "leave out --interactive"),
        (("--prompt", "x", "--top-p", "0.5"), "add a --temperature above 0"),
        (("--prompt", "x", "--seed", "1"), "add a --temperature above 0"),
        (("--prompt", "x", "--temperature", "1", "--top-p", "0"), "--top-p must be above 0"),
        (("--prompt", "x", "--stop", ""), "--stop is empty"),
    ],
)
def test_options_without_an_effect_are_refused(
    silo: Path, arguments: tuple[object, ...], expected: str
) -> None:
    done = generate(silo, *arguments)
    assert done.exit_code == 1
    assert expected in done.stderr.replace("\n", " ")


def test_interactive_lines_are_separate_prompts_without_a_chat(
    silo: Path, adapter: tuple[object, ...]
) -> None:
    options = (*adapter, "--compare", "--max-new-tokens", 5)
    expected = [generate(silo, "--prompt", text, *options).stdout for text in (PROMPT, "a\nb=", "x=")]
    typed = generate(
        silo, "--interactive", "--prompt", PROMPT, *options, typed="a\\\nb=\n\n/reset\nx=\n/exit\nnever\n"
    )
    assert typed.exit_code == 0, typed.output
    assert typed.stdout == "".join(expected)
    assert "the chat is cleared" in typed.stderr
    long = generate(silo, "--interactive", *options, typed=f"{'a' * 5000}\nx=\n")  # then the input ends
    assert long.exit_code == 0, long.output
    assert "shorten the prompt" in long.stderr
    assert long.stdout.endswith(expected[2])


@pytest.fixture
def chat_model(tiny: Callable[..., BaseModel]) -> BaseModel:
    base = tiny(max_position_embeddings=64)
    base.tokenizer.chat_template = TEMPLATE
    return base


def converse(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch, lines: list[str], decoding: Decoding
) -> list[Turn]:
    """Type lines into a chat, and return the turns that are left."""
    typed, turns = iter(lines), list[Turn]()
    monkeypatch.setattr("builtins.input", lambda mark: next(typed))
    conversation = Conversation(
        base, [Side("a", _null_context, turns), Side("b", _null_context)], decoding, chat=True
    )
    conversation.run(None)
    return turns


@contextmanager
def _null_context() -> Iterator[None]:
    yield


def test_chat_keeps_its_turns_until_reset(chat_model: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    base, decoding = chat_model, Decoding(4)

    def answer(turns: list[Turn]) -> str:
        return completion(base, encode_chat(turns, base.tokenizer), decoding).text

    first = answer([Turn("user", "ab")])
    before = [Turn("user", "ab"), Turn("assistant", first), Turn("user", "cd")]
    assert converse(base, monkeypatch, ["ab", "cd", "/exit"], decoding) == [
        *before,
        Turn("assistant", answer(before)),
    ]
    assert converse(base, monkeypatch, ["ab", "/reset", "cd", "/exit"], decoding) == [
        Turn("user", "cd"),
        Turn("assistant", answer([Turn("user", "cd")])),
    ]


def test_oldest_turns_are_dropped_from_full_context(
    chat_model: BaseModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = converse(chat_model, monkeypatch, ["abcd", "efgh", "ijkl", "/exit"], Decoding(8))
    assert [turn.content for turn in turns if turn.role == "user"][-1] == "ijkl"
    assert turns[0].role == "user"
    assert turns[0].content != "abcd"
    assert "the context of 64 tokens is full" in capsys.readouterr().err


def test_ctrl_c_stops_the_answer_only(chat_model: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    base = chat_model
    cast(Any, base.tokenizer).eos_token = None  # only Ctrl-C ends the answer early
    cast(Any, base.tokenizer).bos_token = cast(Any, base.tokenizer).pad_token = None
    whole = completion(base, encode_prompt("ab", base.tokenizer, chat=True), Decoding(30))

    def press(text: str = "", *, end: str = "\n", **_: object) -> None:
        if not end:  # a part of an answer
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("builtins.print", press)
    before = signal.getsignal(signal.SIGINT)
    turns = converse(base, monkeypatch, ["ab", "/exit"], Decoding(30))
    assert signal.getsignal(signal.SIGINT) is before
    assert 0 < len(turns[1].content) < len(whole.text)
