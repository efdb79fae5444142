"""Deal a study's pools of examples out to its silos. Seeded; reads data files, knows no model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from client_agent.errors import StudyUnusable
from client_agent.model.draws import permutation
from client_agent.model.examples import Example
from client_agent.simulation.study import Study, StudySilo
from client_agent.training.data import SiloData, load_data


def drawn(study: Study, seed: int) -> dict[str, SiloData]:
    """Give every silo its examples: those of one pool are disjoint, and follow from seed and pool alone.

    More examples per silo only add to fewer. Test items are drawn for every silo by itself.

    Raises:
        StudyUnusable: a pool is too small.
        DataInvalid: a file has no examples.
    """
    pools: dict[tuple[Path, Path | None], list[StudySilo]] = {}
    for silo in study.silo:
        pools.setdefault((silo.train, silo.test), []).append(silo)
    sharing: dict[Path, list[StudySilo]] = {}
    tests: dict[str, tuple[Example, ...]] = {}
    train: dict[Path, tuple[Example, ...]] = {}
    for (file, test), silos in pools.items():
        data = load_data(file, test)
        train[file] = data.train
        sharing.setdefault(file, []).extend(silos)
        tests |= {silo.name: _tests(data.test, study.tests, seed, silo.name) for silo in silos}
    dealt = {name: mine for file in train for name, mine in _dealt(train[file], sharing[file], seed).items()}
    return {silo.name: SiloData(tuple(dealt[silo.name]), tests[silo.name]) for silo in study.silo}


def digest_of_examples(examples: Sequence[Example]) -> str:
    """Name examples and their order."""
    return hashlib.sha256(json.dumps([example.key for example in examples]).encode()).hexdigest()


def _dealt(pool: Sequence[Example], silos: Sequence[StudySilo], seed: int) -> dict[str, list[Example]]:
    """Deal as one deals cards, in turn, until everybody has what it asks for."""
    different = list({example.key: example for example in pool}.values())
    asked = sum(silo.examples for silo in silos)
    if asked > len(different):
        raise StudyUnusable(
            f"{silos[0].train} has {len(different)} different examples, and "
            f"{', '.join(silo.name for silo in silos)} ask for {asked}: lower silo.examples, or add examples"
        )
    order = iter(permutation(len(different), "study", digest_of_examples(different), seed))
    hands: dict[str, list[Example]] = {silo.name: [] for silo in silos}
    for turn in range(max(silo.examples for silo in silos)):
        for silo in silos:
            if turn < silo.examples:
                hands[silo.name].append(different[next(order)])
    return hands


def _tests(pool: Sequence[Example], most: int, seed: int, silo: str) -> tuple[Example, ...]:
    order = permutation(len(pool), "study tests", digest_of_examples(pool), seed, silo)
    return tuple(pool[i] for i in order[:most])
