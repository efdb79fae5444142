"""The data of every silo of a study: the record of a partition in a comparison's output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from client_agent.model.examples import Example
from client_agent.training.data import SiloData
from schemas.messages.base import Strict
from studies.mixtures import classes_of
from studies.partition import draw_examples
from studies.pools import digest_of_examples, open_pool, place_of
from studies.study import Study
from studies.study_partitions import Partition


class SiloRecord(Strict):
    """The number of a silo's examples of each class (source, or label of one), and digests of all of them."""

    train: dict[str, int]
    validation: dict[str, int]
    test: dict[str, int]
    train_digest: str
    validation_digest: str
    test_digest: str


class PartitionRecord(Strict):
    """The data of all silos with one seed; `partition` is None if each silo names its own sources."""

    seed: int
    partition: Partition | None
    silos: dict[str, SiloRecord]


def describe_partition(study: Study, seed: int) -> PartitionRecord:
    """Describe the examples that `draw_examples` returns, without their text.

    Raises:
        StudyUnusable, DataInvalid: see `draw_examples`.
    """
    by_key = _classes(study)
    silos = {
        silo.name: _record(draw, by_key, silo.train or "")
        for silo, draw in zip(study.silo, draw_examples(study, seed).values(), strict=True)
    }
    return PartitionRecord(seed=seed, partition=study.partition, silos=silos)


def _classes(study: Study) -> dict[str, str]:
    """Return the class of every example of a partition's sources, by digest."""
    if study.partition is None:
        return {}
    classes = classes_of(study, {source.name: open_pool(place_of(source)) for source in study.source})
    return {
        example.key: name
        # Training last, which wins where a label differs: it is what silos are made of.
        for side in (classes.test, classes.validation, classes.train)
        for name, examples in side.items()
        for example in examples
    }


def _record(data: SiloData, by_key: Mapping[str, str], source: str) -> SiloRecord:
    def counts(examples: Sequence[Example]) -> dict[str, int]:
        return dict(sorted(Counter(by_key.get(example.key, source) for example in examples).items()))

    return SiloRecord(
        train=counts(data.train),
        validation=counts(data.validation),
        test=counts(data.test),
        train_digest=digest_of_examples(data.train),
        validation_digest=digest_of_examples(data.validation),
        test_digest=digest_of_examples(data.test),
    )
