"""Partitions of pooled sources: every silo draws from classes of examples by weights of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_agent.errors import StudyUnusable
from client_agent.model.examples import Example, Task
from client_agent.training.data import SiloData
from schemas.maths.seeded_random import stream, words
from studies.assignment import assigned_tasks
from studies.pools import Pool, distinct, open_pool, place_of, shuffled
from studies.study import Study
from studies.study_partitions import DirichletPartition, PartitionOfTasks, SizePartition, TaskPartition

MOST_LABELS = 20
"""A source with more different completions has no labels: it is one class."""

_SMALLEST_WEIGHT = 1e-12  # a class without weight is still drawn from when the remaining are used up
_Weights = Mapping[str, float]


def draw_mixtures(study: Study, seed: int) -> dict[str, SiloData]:
    """Return the data of the silos of a partition; see `draw_examples` for what is disjoint.

    Test examples of a silo are drawn with the weights of its training examples.

    Raises:
        StudyUnusable: the sources have too few examples.
        DataInvalid: see `open_pool`.
    """
    pools = {source.name: open_pool(place_of(source)) for source in study.source}
    by_class = classes_of(study, pools)
    weights = weights_of(study, seed, by_class)
    tests = {
        silo.name: _drawn_alone(by_class.test, weights[silo.name], study.tests, "tests", seed, silo.name)
        for silo in study.silo
    }
    # Of all silos: what one is tested on, no other may train on.
    tested = {example.key for items in tests.values() for example in items}
    named = _Queues.of(by_class.validation, tested, "validation", seed)
    excluded = tested | {example.key for items in by_class.validation.values() for example in items}
    queues = _Queues.of(by_class.train, excluded, "train", seed)
    counts = sizes_of(study)
    validation: dict[str, list[Example]] = {silo.name: [] for silo in study.silo}
    hands: dict[str, list[Example]] = {silo.name: [] for silo in study.silo}
    _deal_validation(study, seed, weights, named, queues, validation)
    choices = {silo.name: _Choices(weights[silo.name], "train", seed, silo.name) for silo in study.silo}
    # Example by example in turn, so that no silo takes the rare classes of all.
    for turn in range(max(counts.values())):
        for name, count in counts.items():
            if turn < count:
                hands[name].append(_next(queues, choices[name], name, sum(counts.values())))
    return {
        silo.name: SiloData(
            train=tuple(hands[silo.name]),
            validation=tuple(validation[silo.name]),
            test=tuple(tests[silo.name]),
        )
        for silo in study.silo
    }


@dataclass(frozen=True, slots=True)
class Classes:
    """The examples of every class: of a source, a label of it, or a task of its rows."""

    train: Mapping[str, Sequence[Example]]
    validation: Mapping[str, Sequence[Example]]
    test: Mapping[str, Sequence[Example]]

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(examples) for name, examples in self.train.items()}

    @property
    def tasks(self) -> dict[str, Task]:
        """The tasks of the training examples, where classes are tasks."""
        return {
            name: examples[0].task for name, examples in self.train.items() if examples[0].task is not None
        }


def classes_of(study: Study, pools: Mapping[str, Pool]) -> Classes:
    """Group the examples of all sources by class; an example of two sources belongs to the first one.

    Raises:
        StudyUnusable: classes are tasks, and an example has none.
    """
    partition = study.partition
    by_label = isinstance(partition, DirichletPartition) and partition.over == "label"
    train: dict[str, list[Example]] = {}
    validation: dict[str, list[Example]] = {}
    test: dict[str, list[Example]] = {}
    claimed: set[str] = set()
    for name, pool in pools.items():
        completions = {example.completion for example in pool.train}
        has_labels = by_label and len(completions) <= MOST_LABELS
        for side, examples in ((train, pool.train), (validation, pool.validation or ()), (test, pool.test)):
            for example in examples:
                # An example of two sources must not go to two silos.
                if side is train and example.key in claimed:
                    continue
                label = f"{name}: {example.completion.strip()}" if has_labels else name
                if isinstance(partition, PartitionOfTasks):
                    label = _task(example, name, partition.kind)
                side.setdefault(label, []).append(example)
        claimed |= {example.key for example in pool.train}
    return Classes(train, validation, test)


def _task(example: Example, source: str, kind: str) -> str:
    if example.task is None:
        raise StudyUnusable(
            f"the rows of source {source} have no tasks, which the partition {kind} assigns; use "
            'format = "natural_instructions" and rows with a column task_name'
        )
    return example.task.name


def weights_of(study: Study, seed: int, classes: Classes) -> dict[str, _Weights]:
    """Return every silo's weights of the classes.

    Raises:
        StudyUnusable: tasks cannot be assigned, see `assigned_tasks`.
    """
    match study.partition:
        case DirichletPartition(alpha=alpha):
            # Every silo draws with its own name, so that a new silo in the study does not change the others.
            return {silo.name: dirichlet(alpha, list(classes.train), seed, silo.name) for silo in study.silo}
        case partition if isinstance(partition, PartitionOfTasks):
            assigned = assigned_tasks(study, seed, classes.tasks, classes.test.keys())
            return {silo: dict.fromkeys(names, 1.0) for silo, names in assigned.items()}
        case TaskPartition(tasks_per_silo=count):
            names = [source.name for source in study.source]
            return {
                silo.name: {names[(index + step) % len(names)]: 1.0 for step in range(count)}
                for index, silo in enumerate(study.silo)
            }
        case _:
            return {silo.name: dict(classes.sizes) for silo in study.silo}


def sizes_of(study: Study) -> dict[str, int]:
    """Return every silo's number of training examples.

    Raises:
        StudyUnusable: a power law leaves silos without an example.
    """
    partition = study.partition
    sizes = {silo.name: silo.examples for silo in study.silo}
    if not isinstance(partition, SizePartition):
        return sizes
    if partition.sizes is not None:
        return dict(zip(sizes, partition.sizes, strict=True))
    assert partition.power is not None
    total = sum(sizes.values())
    shares = np.arange(1, len(sizes) + 1, dtype=np.float64) ** -partition.power
    # Largest remainders: the sizes add up to the total.
    exact = total * shares / shares.sum()
    counts = np.floor(exact).astype(int)
    for index in np.argsort(counts - exact, kind="stable")[: total - int(counts.sum())]:
        counts[index] += 1
    if counts.min() < 1:
        raise StudyUnusable(
            f"partition.power {partition.power} leaves silo {study.silo[int(counts.argmin())].name} without "
            "an example; lower it, or raise silo.examples"
        )
    return {name: int(count) for name, count in zip(sizes, counts, strict=True)}


def dirichlet(alpha: float, classes: Sequence[str], seed: int, silo: str) -> dict[str, float]:
    """Draw a silo's weights from a symmetric Dirichlet distribution, by gamma variables of the seed.

    Gamma(alpha) is Gamma(alpha + 1) * U ** (1 / alpha), here in logarithms: it underflows for a small alpha.
    """
    random = np.random.Generator(stream("study dirichlet", seed, silo))
    # Gamma(alpha) is Gamma(alpha + 1) U^(1 / alpha): in logarithms, because it underflows for a small alpha.
    logs = np.log(random.standard_gamma(alpha + 1, size=len(classes)))
    logs += np.log1p(-random.random(len(classes))) / alpha
    weights = np.exp(logs - logs.max())
    weights = weights / weights.sum() + _SMALLEST_WEIGHT
    return {name: float(value) for name, value in zip(classes, weights / weights.sum(), strict=True)}


class _Queues:
    """The examples of every class that are still to be dealt."""

    def __init__(self, left: dict[str, list[Example]]) -> None:
        self.left = left

    @classmethod
    def of(
        cls, classes: Mapping[str, Iterable[Example]], excluded: AbstractSet[str], side: str, *key: int | str
    ) -> _Queues:
        """Shuffle the examples of each class, without the excluded keys."""
        available = {
            name: [example for example in distinct(examples) if example.key not in excluded]
            for name, examples in classes.items()
        }
        return cls(
            {name: shuffled(items, f"study {side}", name, *key) for name, items in available.items() if items}
        )

    def take(self, choices: _Choices, remaining: _Queues | None = None) -> Example | None:
        """Return the next example of a class that is drawn by weight; None if all with a weight are empty.

        A class without examples here is taken from `remaining`, if passed: which queue holds a class does not
        change how often it is drawn.
        """
        queues = (self.left, remaining.left if remaining is not None else {})
        # Which queue holds a class must not change how often it is drawn.
        names = [name for name in choices.weights if any(left.get(name) for left in queues)]
        if not names:
            return None
        drawn = choices.draw(names)
        return next(left for left in queues if left.get(drawn))[drawn].pop(0)


class _Choices:
    """A silo's sequence of classes, drawn by its weights."""

    def __init__(self, weights: _Weights, side: str, seed: int, silo: str) -> None:
        self.weights = weights
        self._key = ("study classes", side, seed, silo)
        self._drawn = 0

    def draw(self, names: Sequence[str]) -> str:
        # Without a draw, so that a later choice does not depend on how many classes are empty.
        if len(names) == 1:
            return names[0]
        # By position in a stream of its own: a silo's sequence does not depend on other silos.
        unit = float(words(1, *self._key, begin=self._drawn)[0]) * 2.0**-64
        self._drawn += 1
        edges: NDArray[np.float64] = np.cumsum([self.weights[name] for name in names])
        return names[min(int(np.searchsorted(edges, unit * edges[-1], side="right")), len(names) - 1)]


def _drawn_alone(
    classes: Mapping[str, Sequence[Example]], weights: _Weights, count: int, side: str, seed: int, silo: str
) -> list[Example]:
    """Draw at most `count` examples for one silo, whatever remaining draw."""
    queues = _Queues.of(classes, frozenset(), side, seed, silo)
    choices = _Choices(weights, side, seed, silo)
    drawn = (queues.take(choices) for _ in range(count))
    items = [example for example in drawn if example is not None]
    if not items:
        raise StudyUnusable(
            f"the sources of silo {silo} have no {side} of its classes; add examples, or raise alpha"
        )
    return items


def _deal_validation(
    study: Study,
    seed: int,
    weights: Mapping[str, _Weights],
    named: _Queues,
    queues: _Queues,
    hands: dict[str, list[Example]],
) -> None:
    """Deal validation examples in turn; a class without a source for validation is taken from training."""
    total = study.validation * len(study.silo)
    choices = {silo.name: _Choices(weights[silo.name], "validation", seed, silo.name) for silo in study.silo}
    for _ in range(study.validation):
        for name, choice in choices.items():
            hands[name].append(_next(named, choice, name, total, queues))


def _next(
    queues: _Queues, choices: _Choices, silo: str, total: int, remaining: _Queues | None = None
) -> Example:
    example = queues.take(choices, remaining)
    if example is None:
        raise StudyUnusable(
            f"the sources of silo {silo} are used up: the silos need {total} examples; lower silo.examples "
            "or validation, or add examples"
        )
    return example
