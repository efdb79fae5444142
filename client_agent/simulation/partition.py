"""Deal a study's pools of examples out to its silos. Seeded; reads data files, knows no model."""

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


def drawn(study: Study, seed: int) -> dict[str, SiloData]:
    """Give every silo its examples: those of one file are disjoint, and follow from seed and files alone.

    More examples per silo only add to fewer. Test items are drawn first, for every silo by itself; what is a
    test item of any silo, or held out for tests by any of a file's silos, trains nobody.

    Raises:
        StudyUnusable: a pool is too small.
        DataInvalid: a file has no examples.
    """
    pools = {silo.name: _pool(silo) for silo in study.silo}
    data = {pool: load_data(*pool) for pool in dict.fromkeys(pools.values())}
    tests = {name: _tests(data[pool].test, study.tests, seed, name) for name, pool in pools.items()}
    taken = {item.key for items in tests.values() for item in items}
    sharing: dict[Path, list[StudySilo]] = {}
    for silo in study.silo:
        sharing.setdefault(pools[silo.name][0], []).append(silo)
    dealt: dict[str, list[Example]] = {}
    for file, silos in sharing.items():
        sides = [mine.train for (train, _), mine in data.items() if train == file]
        dealt |= _dealt(_free(sides, taken), silos, seed, _where(file, pools, tests, sides))
    return {silo.name: SiloData(tuple(dealt[silo.name]), tests[silo.name]) for silo in study.silo}


def digest_of_examples(examples: Sequence[Example]) -> str:
    """Name examples and their order."""
    return hashlib.sha256(json.dumps([example.key for example in examples]).encode()).hexdigest()


def _pool(silo: StudySilo) -> _Pool:
    """Name a silo's files, each by one name only: a folder stands for the files in it."""
    train, test = silo.train, silo.test
    if train.is_dir():
        found = train / "test.jsonl"
        train, test = train / "train.jsonl", test or (found if found.is_file() else None)
    return train.resolve(), test.resolve() if test is not None else None


def _free(sides: Sequence[Sequence[Example]], taken: AbstractSet[str]) -> list[Example]:
    """Give the different examples that train for every pool of a file, without those that are taken."""
    allowed = set.intersection(*({example.key for example in side} for side in sides)) - taken
    return [example for key, example in {e.key: e for e in sides[0]}.items() if key in allowed]


def _where(
    file: Path,
    pools: Mapping[str, _Pool],
    tests: Mapping[str, Sequence[Example]],
    sides: Sequence[Sequence[Example]],
) -> str:
    """Name a file of training examples and the files whose test items it lost examples to."""
    here = {example.key for side in sides for example in side}
    takers = {test or train for name, (train, test) in pools.items() if here & {e.key for e in tests[name]}}
    takers |= {file for train, test in pools.values() if train == file and test is None}
    if not takers:
        return str(file)
    return f"{file}, without test items of {' and '.join(map(str, sorted(takers)))},"


def _dealt(
    pool: Sequence[Example], silos: Sequence[StudySilo], seed: int, where: str
) -> dict[str, list[Example]]:
    """Deal as one deals cards, in turn, until everybody has what it asks for."""
    asked = sum(silo.examples for silo in silos)
    if asked > len(pool):
        raise StudyUnusable(
            f"{where} has {len(pool)} different examples, and {', '.join(silo.name for silo in silos)} ask "
            f"for {asked}: lower silo.examples, or add examples"
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
