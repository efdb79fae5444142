"""Streams of a study's sources: read until its silos' tasks have enough rows, and stored as files."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from client_agent.data.load import RowOptions
from client_agent.data.row import Row
from client_agent.data.sources import HUB, rows
from client_agent.data.templates.natural_instructions import task_of
from client_agent.errors import DataInvalid, StudyUnusable
from client_agent.model.examples import Task
from client_agent.storage.files import write_durably
from studies.assignment import NO_CATEGORIES, first_category, listed, tasks_by_name, tasks_in
from studies.pools import place_of
from studies.study import Study
from studies.study_fields import Stream, StudySource
from studies.study_partitions import CategoryPartition, ClientPartition, KeywordPartition

log = logging.getLogger(__name__)

STREAMED = "streamed"
_REPORT_EVERY = 10_000

Report = Callable[[str], None]
"""Called with a line of progress."""


def with_streams(study: Study, out: Path, report: Report = log.info) -> Study:
    """Return the study with files of the rows that it needs in place of its streams, in a folder of `out`.

    Rows of the hub are stored once for the same study: without that folder they are read again.

    Raises:
        StudyUnusable: a task or a category was not met within a stream's limit.
        DataInvalid: a source cannot be read, or has a bad row.
    """
    sources = [
        source if source.stream is None else _stored(study, source, source.stream, out / STREAMED, report)
        for source in study.source
    ]
    return study.model_copy(update={"source": sources})


def _stored(study: Study, source: StudySource, stream: Stream, folder: Path, report: Report) -> StudySource:
    place = place_of(source)
    need = _Need.of(study)
    facts = json.dumps([source.model_dump_json(), need.facts])
    # By what decides which rows are taken: another study has other files.
    home = folder / hashlib.sha256(facts.encode()).hexdigest()[:16]
    files: dict[str, str] = {}
    for side, where in (("train", place.train), ("validation", place.validation), ("test", place.test)):
        if where is None:
            continue
        file = home / f"{side}.jsonl"
        # Local sources may have changed, and are read again.
        if not (where.startswith(HUB) and file.is_file()):
            lines = _take(where, place.rows, stream, need, report)
            write_durably(file, "".join(f"{line}\n" for line in lines).encode())
        if side == "train":  # the other sides need the tasks of the training rows
            need = _Need.for_tasks(_task_names(file, place.rows))
        files[side] = str(file)
    return source.model_copy(update={**files, "stream": None})


def _task_names(file: Path, options: RowOptions) -> list[str]:
    tasks = (task_of(_as_read(row, options)) for row in rows(str(file)))
    return list(dict.fromkeys(task.name for task in tasks if task is not None))


def _as_read(row: Row, options: RowOptions) -> Row:
    return replace(row, names=dict(options.columns), ignored=frozenset(options.ignored))


@dataclass(frozen=True, slots=True)
class _Need:
    """The tasks that the silos of a study need, in groups: a category's tasks, or one named task.

    Attributes:
        most, least: how many tasks of each group are taken, and have to be.
        group_of: the group of a task; None = the task is not needed.
        by_column: whether groups are categories of the rows.
        is_one_task: whether each group is one task by its name.
        facts: everything that decides which rows are taken, as text.
    """

    most: Mapping[str, int]
    least: Mapping[str, int]
    group_of: Callable[[Task], str | None]
    by_column: bool = False
    is_one_task: bool = False
    facts: str = ""

    @classmethod
    def for_tasks(cls, names: list[str]) -> _Need:
        single = dict.fromkeys(names, 1)
        return cls(
            single, single, partial(_by_name, single.keys()), is_one_task=True, facts=json.dumps(names)
        )

    @classmethod
    def of(cls, study: Study) -> _Need:
        """Return the tasks and rows that a study needs.

        Raises:
            StudyUnusable: the partition's file cannot be read, or has not all of its categories.
        """
        partition = study.partition
        if isinstance(partition, ClientPartition):
            by_silo = tasks_by_name(partition.file, "silo")
            return cls.for_tasks(list(dict.fromkeys(name for names in by_silo.values() for name in names)))
        assert isinstance(partition, KeywordPartition | CategoryPartition)
        categories, count = partition.categories, partition.tasks_per_category
        silos = [category for silo in study.silo for category in silo.categories]
        most = {category: count * max(1, silos.count(category)) for category in categories}
        facts: list[object] = [partition.model_dump_json(), most]
        group_of: Callable[[Task], str | None]
        if isinstance(partition, KeywordPartition):
            group_of = partial(_by_keyword, partition.keywords)
        elif partition.file is None:
            group_of = partial(_by_column, categories)
        else:
            by_file = tasks_in(categories, partition.file)
            facts.append(by_file)
            group_of = partial(_by_file, by_file)
        by_column = isinstance(partition, CategoryPartition) and partition.file is None
        return cls(most, dict.fromkeys(categories, count), group_of, by_column, facts=json.dumps(facts))


@dataclass(slots=True)
class _Tally:
    """The number of rows that were taken of each task, by group."""

    need: _Need
    rows_per_task: int
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    complete: int = 0

    def admits(self, task: Task) -> bool:
        """Count a row and return true if it is needed."""
        group = self.need.group_of(task)
        if group is None:
            return False
        counts = self.counts.setdefault(group, {})
        # The first tasks that are met: a stream has no other order.
        if task.name not in counts and len(counts) == self.need.most[group]:
            return False
        if counts.get(task.name, 0) == self.rows_per_task:
            return False
        counts[task.name] = counts.get(task.name, 0) + 1
        self.complete += counts[task.name] == self.rows_per_task
        return True

    @property
    def is_complete(self) -> bool:
        return self.complete == sum(self.need.most.values())

    def describe(self, source: str, number: int) -> str:
        started = sum(map(len, self.counts.values()))
        return (
            f"{source}: {number:,} rows read; of {sum(self.need.most.values())} tasks {started} met, "
            f"{self.complete} with all {self.rows_per_task} rows"
        )

    def require_all(self, source: str, number: int, *, limited: bool) -> None:
        """Raise unless every group has enough tasks.

        Raises:
            StudyUnusable: one has too few.
        """
        for group, least in self.need.least.items():
            met = self.counts.get(group, {})
            if len(met) >= least:
                continue
            every = listed(name for counts in self.counts.values() for name in counts) or "none"
            lacking = (
                f"no row of the task {group}"
                if self.need.is_one_task
                else f"{len(met)} of {least} tasks of the category {group}"
            )
            remedy = "raise stream.most_rows, check" if limited else "it has no more rows; check"
            raise StudyUnusable(
                f"{source}: {lacking} in the first {number:,} rows; {remedy} the name or the keywords, or "
                f"download the task files and name their folder as train. Needed tasks that were met: {every}"
            )


def _by_keyword(keywords: Mapping[str, Sequence[str]], task: Task) -> str | None:
    return first_category(task.definition, keywords)


def _by_column(categories: Sequence[str], task: Task) -> str | None:
    return next((category for category in categories if category in task.categories), None)


def _by_file(tasks: Mapping[str, Sequence[str]], task: Task) -> str | None:
    return next((category for category, names in tasks.items() if task.name in names), None)


def _by_name(names: AbstractSet[str], task: Task) -> str | None:
    return task.name if task.name in names else None


def _take(source: str, options: RowOptions, stream: Stream, need: _Need, report: Report) -> list[str]:
    """Read a source until all needed tasks have their rows, or the limit; return their rows as JSON."""
    tally = _Tally(need, stream.rows_per_task)
    lines: list[str] = []
    number = 0
    for number, row in enumerate(islice(rows(source, stream=True), stream.most_rows), start=1):
        task = _task(_as_read(row, options), options)
        if task is not None and need.by_column and number == 1 and not task.categories:
            raise StudyUnusable(NO_CATEGORIES)
        if task is not None and tally.admits(task):
            lines.append(json.dumps(row.columns, default=str))
        if number % _REPORT_EVERY == 0:
            report(tally.describe(source, number))
        if tally.is_complete:
            break
    report(tally.describe(source, number))
    tally.require_all(source, number, limited=number == stream.most_rows)
    return lines


def _task(row: Row, options: RowOptions) -> Task | None:
    """Return the task of a row; None for a bad one that is skipped.

    Raises:
        DataInvalid: it is bad, and bad rows are not skipped.
    """
    try:
        # A stream assigns tasks: rows without a name cannot be counted.
        row.text("task_name")
        return task_of(row)
    except DataInvalid:
        if options.skip_bad_rows:
            return None
        raise
