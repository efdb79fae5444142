"""Seeded partition of a study's example pools into the data of its silos."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from client_agent.errors import StudyUnusable
from client_agent.model.examples import Example
from client_agent.simulation.study import Study, StudySilo
from client_agent.training.data import SiloData, load_data
from schemas.maths.seeded_random import permutation

_Pool = tuple[Path, Path | None]


def draw_examples(study: Study, seed: int) -> dict[str, SiloData]:
    """Return every silo's data: disjoint examples of each file, determined by the seed and the files.

    A larger number of examples per silo extends the smaller set. Test items are drawn first, per silo; a test
    item of any silo, or of a held-out file, is excluded from all training sets.

    Raises:
        StudyUnusable: a pool is too small.
        DataInvalid: a file has no examples.
    """
    pools = {silo.name: _pool(silo) for silo in study.silo}
    data = {pool: load_data(*pool, validation_share=0) for pool in dict.fromkeys(pools.values())}
    tests = {name: _tests(data[pool].test, study.tests, seed, name) for name, pool in pools.items()}
    excluded = {item.key for items in tests.values() for item in items}
    sharing: dict[Path, list[StudySilo]] = {}
    for silo in study.silo:
        sharing.setdefault(pools[silo.name][0], []).append(silo)
    dealt: dict[str, list[Example]] = {}
    for file, silos in sharing.items():
        sides = [side.train for (train, _), side in data.items() if train == file]
        dealt |= _deal(_available(sides, excluded), silos, seed, _describe_source(file, pools, tests, sides))
    return {silo.name: SiloData(tuple(dealt[silo.name]), (), tests[silo.name]) for silo in study.silo}


def digest_of_examples(examples: Sequence[Example]) -> str:
    return hashlib.sha256(json.dumps([example.key for example in examples]).encode()).hexdigest()


def _pool(silo: StudySilo) -> _Pool:
    """Return a silo's resolved train and test files; a folder stands for the files in it."""
    train, test = silo.train, silo.test
    if train.is_dir():
        test_file = train / "test.jsonl"
        train, test = train / "train.jsonl", test or (test_file if test_file.is_file() else None)
    return train.resolve(), test.resolve() if test is not None else None


def _available(sides: Sequence[Sequence[Example]], excluded: AbstractSet[str]) -> list[Example]:
    """Return the distinct examples in the training side of every pool of a file, minus the excluded keys."""
    allowed = set.intersection(*({example.key for example in side} for side in sides)) - excluded
    return [example for key, example in {e.key: e for e in sides[0]}.items() if key in allowed]


def _describe_source(
    file: Path,
    pools: Mapping[str, _Pool],
    tests: Mapping[str, Sequence[Example]],
    sides: Sequence[Sequence[Example]],
) -> str:
    """Describe a training file, and the test files whose items are excluded from it."""
    keys = {example.key for side in sides for example in side}
    test_files = {
        test or train for name, (train, test) in pools.items() if keys & {e.key for e in tests[name]}
    }
    test_files |= {file for train, test in pools.values() if train == file and test is None}
    if not test_files:
        return str(file)
    return f"{file}, without test items of {' and '.join(map(str, sorted(test_files)))},"


def _deal(
    pool: Sequence[Example], silos: Sequence[StudySilo], seed: int, where: str
) -> dict[str, list[Example]]:
    """Assign examples to silos in turn, until each silo has its number."""
    requested = sum(silo.examples for silo in silos)
    if requested > len(pool):
        raise StudyUnusable(
            f"{where} has {len(pool)} different examples, and {', '.join(silo.name for silo in silos)} need "
            f"{requested}; lower silo.examples, or add examples"
        )
    order = iter(permutation(len(pool), "study", digest_of_examples(pool), seed))
    hands: dict[str, list[Example]] = {silo.name: [] for silo in silos}
    for turn in range(max(silo.examples for silo in silos)):
        for silo in silos:
            if turn < silo.examples:
                hands[silo.name].append(pool[next(order)])
    return hands


def _tests(pool: Sequence[Example], most: int, seed: int, silo: str) -> tuple[Example, ...]:
    different = list({example.key: example for example in pool}.values())
    order = permutation(len(different), "study tests", digest_of_examples(different), seed, silo)
    return tuple(different[i] for i in order[:most])
