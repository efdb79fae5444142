"""The pools of a study: the examples of its sources, before they are dealt to silos."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from client_agent.data.load import RowOptions, load_examples
from client_agent.data.sources import HUB
from client_agent.model.examples import Example
from client_agent.settings import MetricName
from client_agent.training.data import with_metrics, with_test
from schemas.maths.seeded_random import Key, permutation
from studies.study_fields import RowFields, StudySilo, StudySource

log = logging.getLogger(__name__)
_SIDES = ("validation", "test")


@dataclass(frozen=True, slots=True)
class Place:
    """The source and the format of a pool; equal places are one pool."""

    train: str
    validation: str | None
    test: str | None
    rows: RowOptions
    metrics: tuple[MetricName, ...] | None


@dataclass(frozen=True, slots=True)
class Pool:
    """The distinct examples of a place; without a source for validation there are none.

    Without a test source, a share of the training source is held out (`with_test`).
    """

    place: Place
    train: tuple[Example, ...]
    validation: tuple[Example, ...] | None
    test: tuple[Example, ...]

    @property
    def test_source(self) -> str:
        return self.place.test or self.place.train


def place_of(table: StudySilo | StudySource) -> Place:
    """Return a table's sources with resolved paths; a folder stands for the files in it."""
    assert table.train is not None  # `Study` checks it
    sides = {"validation": table.validation, "test": table.test}
    train = table.train
    folder = Path(train)
    if not train.startswith(HUB) and (folder / "train.jsonl").is_file():
        train = str(folder / "train.jsonl")
        for side in _SIDES:
            file = folder / f"{side}.jsonl"
            sides[side] = sides[side] or (str(file) if file.is_file() else None)
    return Place(
        _resolved(train),
        _resolved(sides["validation"]) if sides["validation"] is not None else None,
        _resolved(sides["test"]) if sides["test"] is not None else None,
        _row_options(table),
        tuple(table.metrics) if table.metrics is not None else None,
    )


def open_pool(place: Place) -> Pool:
    """Read the examples of a place.

    Raises:
        DataInvalid: a source cannot be read, has no examples or a bad row, or is too small for a test.
    """
    examples = _read(place, place.train)
    validation = _read(place, place.validation) if place.validation is not None else None
    if place.test is not None:
        return Pool(place, examples, validation, _read(place, place.test))
    # By digest, as an agent holds test examples out.
    train, test = with_test(examples, place.train)
    return Pool(place, train, validation, test)


def digest_of_examples(examples: Sequence[Example]) -> str:
    return hashlib.sha256(json.dumps([example.key for example in examples]).encode()).hexdigest()


def distinct(examples: Iterable[Example]) -> list[Example]:
    # A repeated example could be on two sides.
    return list({example.key: example for example in examples}.values())


def shuffled(examples: Sequence[Example], *key: Key, digest: str | None = None) -> list[Example]:
    """Return the examples in an order that depends on them and on `key` only.

    `digest`: theirs, if it is known; see `digest_of_examples`.
    """
    return [examples[i] for i in permutation(len(examples), *key, digest or digest_of_examples(examples))]


def _row_options(table: RowFields) -> RowOptions:
    columns, ignored = tuple(sorted(table.columns.items())), tuple(sorted(table.ignore_columns))
    return RowOptions(table.format, columns, table.skip_bad_rows, ignored, table.template)


def _resolved(source: str) -> str:
    return source if source.startswith(HUB) else str(Path(source).resolve())


def _read(place: Place, source: str) -> tuple[Example, ...]:
    # With the version of the file, so that a changed one is read again.
    return _read_once(source, place.rows, place.metrics, _version(source))


@cache
def _read_once(
    source: str, rows: RowOptions, metrics: tuple[MetricName, ...] | None, version: tuple[int, int]
) -> tuple[Example, ...]:
    """Read a source once per version of its file: every seed and method of a study reads it."""
    loaded = load_examples(source, rows)
    for sentence in loaded.unused.sentences():
        log.warning("%s: %s", source, sentence)
    return with_metrics(tuple(distinct(loaded.examples)), metrics)


def _version(source: str) -> tuple[int, int]:
    try:
        status = Path(source).stat()
    except OSError:  # a hub id, a split of a folder, or a missing file, which `load_examples` reports
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)
