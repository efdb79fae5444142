"""Seeded draw of the data of a study's silos: from the files of each, or by its partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from client_agent.errors import StudyUnusable
from client_agent.model.examples import Example
from client_agent.training.data import SiloData
from studies.mixtures import draw_mixtures
from studies.pools import Pool, digest_of_examples, distinct, open_pool, place_of, shuffled
from studies.study import Study
from studies.study_fields import StudySilo

__all__ = ["digest_of_examples", "draw_examples"]

_Hands = dict[str, list[Example]]


def draw_examples(study: Study, seed: int) -> dict[str, SiloData]:
    """Return every silo's data, determined by the seed and the sources.

    Training and validation examples of all silos are disjoint, and none of them is a test example of any
    silo; the exception are validation sources that silos name, from which each draws by itself. A larger
    number of training examples per silo extends the smaller set.

    Raises:
        StudyUnusable: a pool is too small, or a silo's `answers` lack an answer of its rows.
        DataInvalid: a source cannot be read or has no examples.
    """
    drawn = draw_mixtures(study, seed) if study.partition is not None else _drawn(study, seed)
    return {silo.name: _in_own_words(drawn[silo.name], silo) for silo in study.silo}


def _drawn(study: Study, seed: int) -> dict[str, SiloData]:
    draw = _Draw.of(study)
    # Once per pool: many silos share one, and its digest reads all examples.
    digests = {id(pool): digest_of_examples(pool.test) for pool in draw.distinct}
    tests = {
        name: tuple(shuffled(pool.test, "study tests", seed, name, digest=digests[id(pool)])[: study.tests])
        for name, pool in draw.pools.items()
    }
    tested = {example.key for items in tests.values() for example in items}
    validation = {
        name: shuffled(_without(pool.validation, tested), "study validation", seed, name)[: study.validation]
        for name, pool in draw.pools.items()
        if pool.validation is not None
    }
    excluded = tested | {example.key for items in validation.values() for example in items}
    orders: _Hands = {}
    claimed: set[str] = set()  # an example of two sources belongs to the first one
    for source in draw.sharing:
        # One order for all silos of a source: a larger number of examples extends the smaller set.
        orders[source] = shuffled(draw.available(source, excluded | claimed), "study", seed)
        claimed |= {example.key for example in orders[source]}
    for source, silos in draw.sharing.items():
        without = [silo for silo in silos if draw.pools[silo.name].validation is None]
        most = study.validation * len(without)
        _require(len(orders[source]), silos, most, draw.describe(source, tests))
        validation |= _deal(orders[source], {silo.name: study.validation for silo in without})
    used = {example.key for items in validation.values() for example in items}
    hands: _Hands = {}
    for source, silos in draw.sharing.items():
        unused = _without(orders[source], used)
        hands |= _deal(unused, {silo.name: silo.examples for silo in silos})
    return {
        silo.name: SiloData(
            train=tuple(hands[silo.name]),
            validation=tuple(validation[silo.name]),
            test=tests[silo.name],
        )
        for silo in study.silo
    }


@dataclass(frozen=True, slots=True)
class _Draw:
    """The pools of the silos by name, and the silos by their training source."""

    pools: Mapping[str, Pool]
    sharing: Mapping[str, Sequence[StudySilo]]

    @classmethod
    def of(cls, study: Study) -> _Draw:
        """Read all pools.

        Raises:
            StudyUnusable: two silos read one training source differently.
            DataInvalid: see `open_pool`.
        """
        places = {silo.name: place_of(silo) for silo in study.silo}
        opened = {place: open_pool(place) for place in dict.fromkeys(places.values())}
        sharing: dict[str, list[StudySilo]] = {}
        for silo in study.silo:
            together = sharing.setdefault(places[silo.name].train, [])
            if together and places[together[0].name].rows != places[silo.name].rows:
                raise StudyUnusable(
                    f"silos {together[0].name} and {silo.name} read {places[silo.name].train} with different "
                    "format, columns, ignore_columns or skip_bad_rows; use the same, or copies of the source"
                )
            together.append(silo)
        return cls({name: opened[place] for name, place in places.items()}, sharing)

    @property
    def distinct(self) -> list[Pool]:
        """Every pool once, whatever the number of its silos."""
        return list({id(pool): pool for pool in self.pools.values()}.values())

    def available(self, source: str, excluded: AbstractSet[str]) -> list[Example]:
        """Return the examples in the training side of every pool of a source, minus the excluded keys."""
        sides = self._sides(source)
        # Pools of one source may hold out different test sets: what one tests on, no other trains on.
        allowed = set.intersection(*({example.key for example in side} for side in sides)) - excluded
        return [example for example in sides[0] if example.key in allowed]

    def describe(self, source: str, tests: Mapping[str, Sequence[Example]]) -> str:
        """Describe a training source, and the test sources whose items are excluded from it."""
        keys = {example.key for side in self._sides(source) for example in side}
        sources = {
            pool.test_source for name, pool in self.pools.items() if keys & {e.key for e in tests[name]}
        }
        sources |= {
            pool.place.train
            for pool in self.pools.values()
            if pool.place.train == source and pool.place.test is None
        }
        if not sources:
            return source
        return f"{source}, without test items of {' and '.join(sorted(sources))},"

    def _sides(self, source: str) -> list[tuple[Example, ...]]:
        return [pool.train for pool in self.distinct if pool.place.train == source]


def _in_own_words(data: SiloData, silo: StudySilo) -> SiloData:
    """Replace the answers of a silo's examples by its own; without `answers` they stay."""
    if not silo.answers:
        return data
    # After the draw, so that silos of one source have disjoint rows whatever their words are.
    train, validation, test = (
        tuple(_reworded(example, silo) for example in side)
        for side in (data.train, data.validation, data.test)
    )
    return replace(data, train=train, validation=validation, test=test)


def _reworded(example: Example, silo: StudySilo) -> Example:
    def reworded(answer: str) -> str:
        word = answer.strip()
        if word not in silo.answers:
            raise StudyUnusable(f"silo {silo.name}: answers lack {word!r}, an answer of its rows; add it")
        return answer.replace(word, silo.answers[word])

    return replace(
        example,
        completion=reworded(example.completion),
        options=tuple(reworded(option) for option in example.options),
    )


def _require(available: int, silos: Sequence[StudySilo], validation: int, where: str) -> None:
    """Raise unless a source has the training and validation examples of its silos.

    Raises:
        StudyUnusable: it has fewer.
    """
    train = sum(silo.examples for silo in silos)
    if train + validation <= available:
        return
    beside = f" and {validation} for validation" if validation else ""
    raise StudyUnusable(
        f"{where} has {available} different examples, and {', '.join(silo.name for silo in silos)} need "
        f"{train}{beside}; lower silo.examples{' or validation' if validation else ''}, or add examples"
    )


def _deal(order: Sequence[Example], counts: Mapping[str, int]) -> _Hands:
    """Assign examples to silos in turn, until each silo has its number."""
    examples = iter(order)
    hands: _Hands = {name: [] for name in counts}
    for turn in range(max(counts.values(), default=0)):
        for name, count in counts.items():
            if turn < count:
                hands[name].append(next(examples))
    return hands


def _without(examples: Sequence[Example], keys: AbstractSet[str]) -> list[Example]:
    return [example for example in distinct(examples) if example.key not in keys]
