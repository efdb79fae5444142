"""Split a silo's examples into training and test set.

The split depends on the examples' text only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from client_agent.data.load import BY_COLUMNS, RowOptions, load_examples
from client_agent.errors import DataInvalid
from client_agent.model.examples import Example

TEST_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class SiloData:
    """Training and test examples, and the errors of rows that were skipped."""

    train: tuple[Example, ...]
    test: tuple[Example, ...]
    skipped: tuple[str, ...] = ()


def load_data(
    train: Path | str,
    test: Path | str | None = None,
    *,
    test_share: float = TEST_SHARE,
    rows: RowOptions = BY_COLUMNS,
) -> SiloData:
    """Load training and test examples; a folder may hold train.jsonl and test.jsonl.

    Without a test source, `test_share` of the examples is held out by digest: an example stays in its set
    when the source changes, and duplicates are in the same set.

    Raises:
        DataInvalid: a source cannot be read, is empty or has a bad row, or a set is empty.
    """
    folder = Path(train)
    if (folder / "train.jsonl").is_file():
        test_file = folder / "test.jsonl"
        train, test = folder / "train.jsonl", test or (test_file if test_file.is_file() else None)
    loaded = load_examples(str(train), rows)
    if test is not None:
        tests = load_examples(str(test), rows)
        return SiloData(loaded.examples, tests.examples, loaded.skipped + tests.skipped)
    examples = loaded.examples
    held_out = {e.key for e in examples if int(e.key[:8], 16) < test_share * 2**32}
    data = SiloData(
        tuple(e for e in examples if e.key not in held_out),
        tuple(e for e in examples if e.key in held_out),
        loaded.skipped,
    )
    if not data.train or not data.test:
        raise DataInvalid(
            f"{train}: {len(examples)} examples are too few to hold out {test_share:.0%}; add examples, "
            "or set a test file"
        )
    return data
