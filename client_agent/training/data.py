"""Read a silo's examples, split them into training and test set, and iterate over batches.

A file is JSON lines: `{"prompt": ..., "completion": ...}`, or chat `{"messages": [{"role", "content"}, ...]}`
whose last message is the assistant's. The split depends on the examples' text only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from client_agent.errors import DataInvalid
from client_agent.model.examples import Example, Turn
from client_agent.model.tokens import Encoded
from schemas.maths.seeded_random import permutation

TEST_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class SiloData:
    """Training and test examples."""

    train: tuple[Example, ...]
    test: tuple[Example, ...]


def load_data(train: Path, test: Path | None = None, *, test_share: float = TEST_SHARE) -> SiloData:
    """Read a file of examples, or a folder with train.jsonl and optionally test.jsonl.

    Without a test file, `test_share` of the examples is held out by digest: an example stays in its set when
    the file changes, and duplicates are in the same set.

    Raises:
        DataInvalid: a file is missing, empty or has an invalid line, or a set is empty.
    """
    if train.is_dir():
        test_file = train / "test.jsonl"
        train, test = train / "train.jsonl", test or (test_file if test_file.is_file() else None)
    examples = read_examples(train)
    if test is not None:
        return SiloData(tuple(examples), tuple(read_examples(test)))
    held_out = {e.key for e in examples if int(e.key[:8], 16) < test_share * 2**32}
    data = SiloData(
        tuple(e for e in examples if e.key not in held_out), tuple(e for e in examples if e.key in held_out)
    )
    if not data.train or not data.test:
        raise DataInvalid(
            f"{train}: {len(examples)} examples are too few to hold out {test_share:.0%}; add examples, "
            "or set a test file"
        )
    return data


def read_examples(path: Path) -> list[Example]:
    """Read one JSON-lines file; empty lines are skipped.

    Raises:
        DataInvalid: the file cannot be read or has no example, or a line is invalid.
    """
    examples: list[Example] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    examples.append(_example(line, f"{path} line {number}"))
    except OSError as error:
        raise DataInvalid(
            f"{path}: cannot be read ({error.strerror}); check the path in the settings"
        ) from error
    if not examples:
        raise DataInvalid(
            f"{path}: holds no example; write one JSON object with prompt and completion per line"
        )
    return examples


def iterate_batches(
    texts: Sequence[Encoded], batch_size: int, *, seed: int, round_number: int
) -> Iterator[list[Encoded]]:
    """Yield batches without end, in shuffled passes; no text occurs twice in a pass.

    With fewer texts than `batch_size` a batch is one pass.
    """
    size = min(batch_size, len(texts))
    pending: list[int] = []
    epoch = 0
    while True:
        while len(pending) < size:
            pending += permutation(len(texts), "deal", seed, round_number, epoch)
            epoch += 1
        yield [texts[i] for i in pending[:size]]
        pending = pending[size:]


def _example(line: bytes, place: str) -> Example:
    try:
        text = line.decode("utf-8")
        record = json.loads(text)
        if "\\u" in text:  # an escape can encode a lone surrogate, which tokenizers reject
            json.dumps(record, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise DataInvalid(f"{place}: not JSON ({error}); write one JSON object per line in UTF-8") from error
    if not isinstance(record, dict):
        raise DataInvalid(f"{place}: not a JSON object; write prompt and completion, or messages")
    if "messages" in record:
        return _chat_example(record["messages"], place)
    return Example(_text(record, "prompt", place), _text(record, "completion", place))


def _chat_example(messages: object, place: str) -> Example:
    if not isinstance(messages, list) or len(messages) < 2 or not all(isinstance(m, dict) for m in messages):
        raise DataInvalid(f"{place}: messages must be a list of two or more objects with role and content")
    turns = [
        Turn(_text(m, "role", place), _text(m, "content", place))
        for m in cast(list[dict[str, object]], messages)
    ]
    if turns[-1].role != "assistant":
        raise DataInvalid(f"{place}: the last message is {turns[-1].role}'s; end with the assistant's answer")
    return Example("", turns[-1].content, tuple(turns[:-1]))


def _text(record: Mapping[str, object], member: str, place: str) -> str:
    value = record.get(member)
    if not isinstance(value, str) or not value:
        raise DataInvalid(f"{place}: {member} is missing, empty or not a string; write some text")
    return value
