"""A federation of real agents under attack: silos that train, and clients that send forged updates.

Everything goes through a coordinator over HTTP. An attacker is an agent, too, whose files are replaced in its
round folder: by the first victim's sketch, and perhaps by an adapter made from those of the victims. So it
knows everything about its victims.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from client_agent.rounds.participant import Participant
from client_agent.rounds.steps import take_part
from client_agent.rounds.training_result import TrainingResult
from client_agent.storage.round_folder import SKETCH, TRAINED, RoundFolder
from client_agent.transport.admin_client import Operator
from schemas.maths.adapter import in_order, size
from schemas.maths.start import start_values
from schemas.messages.rounds import RoundBrief
from schemas.messages.scores import LOSS
from studies.clients import SharedModels
from studies.coordinator_process import running_coordinator
from studies.crew import local_crew
from studies.federated_run import Federation, create_federation, wait_until_published
from studies.methods import Method, plan_of
from studies.results import Cell
from studies.shared_files import FolderFiles
from studies.study import Study
from studies.study_fields import StudySilo
from studies.worker_context import WorkerContext

_ROOT = Path(__file__).resolve().parents[1]
_DATA = _ROOT / "examples" / "studies" / "data"
_MODEL = str(_ROOT / "examples" / "models" / "tiny-s")
_BOOST = 20.0
HONEST, ATTACKERS = 5, 2
EXAMPLES = 12

Craft = Callable[[list[TrainingResult], int], TrainingResult | None]


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack: `craft` makes the sent adapter from the victims' adapters of this round and the plan's seed.

    None = the attacker sends what it has learnt from examples with wrong answers: cipher_b has the prompts of
    cipher and another table.
    """

    attackers: int
    craft: Craft


def _exaggerated_mean(victims: list[TrainingResult], seed: int, *, times: float) -> TrainingResult:
    """Send start + times x (the victims' mean - start)."""
    mean = {name: np.mean([item.adapter[name] for item in victims], axis=0) for name in victims[0].adapter}
    layout = in_order({name: values.shape for name, values in mean.items()})
    flat = np.concatenate([mean[name].ravel() for name in layout])
    start = start_values(layout, seed, 0, size(layout))
    start = np.zeros_like(flat) if start is None else start
    crafted = (start + times * (flat - start)).astype(np.float32)
    pieces = np.split(crafted, np.cumsum([mean[name].size for name in layout])[:-1])
    adapter = {name: piece.reshape(layout[name]) for name, piece in zip(layout, pieces, strict=True)}
    return replace(victims[0], adapter=adapter)


ATTACKS: Mapping[str, Attack] = {
    "none": Attack(0, lambda victims, seed: None),
    "flip": Attack(ATTACKERS, partial(_exaggerated_mean, times=-1.0)),
    "boost x20": Attack(ATTACKERS, partial(_exaggerated_mean, times=-_BOOST)),
    "wrong answers": Attack(ATTACKERS, lambda victims, seed: None),
}


@dataclass(frozen=True, slots=True)
class RoundLosses:
    """Losses of the honest clients on held-out examples, by client, before and after a round."""

    before: list[list[float]]
    after: list[list[float]]


@dataclass(frozen=True, slots=True)
class Place:
    """The shared resources of several runs."""

    operator: Operator
    models: SharedModels
    folder: Path


@contextmanager
def place(folder: Path) -> Iterator[Place]:
    """Run a coordinator for the duration of the block; its database is deleted afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    with (
        running_coordinator(folder / "coordinator") as running,
        Operator(running.url, running.token) as operator,
    ):
        yield Place(operator, SharedModels(), folder)
    shutil.rmtree(folder, ignore_errors=True)


def run(
    where: Place, attack: str, guard: str, *, seed: int, rounds: int, tell: Callable[[], None]
) -> RoundLosses:
    """Run a federation under an attack; `tell` is called after every round."""
    attackers = ATTACKS[attack].attackers
    study = _study(attackers, rounds)
    method = Method(
        "attacked",
        False,
        {
            "strategy": {"name": "fedmosaic", "options": {"guard": guard}},
            "adapter": {"same_architecture_rank": 8},
        },
    )
    cell = Cell("attacked", seed, False, plan_of(study, method, seed, None), "")
    folder = where.folder / f"{attack}-{guard}-{seed}"
    result = RoundLosses([], [])
    context = WorkerContext(study, folder, where.operator, where.models, FolderFiles(where.folder))
    with local_crew(context, cell) as crew:
        federation = create_federation(cell, study, crew, where.operator, None)
        where.operator.post(f"{federation.path}/start")
        for silo in study.silo:
            federation.enrol(silo)
        members = [crew.host.member(name) for name in federation.members]
        for number in range(1, rounds + 1):
            _round(federation, members, number, ATTACKS[attack].craft, result)
            tell()
    shutil.rmtree(folder)
    return result


def _study(attackers: int, rounds: int) -> Study:
    def silo(name: str, task: str) -> StudySilo:
        pool = _DATA / task
        return StudySilo(
            name=name,
            model=_MODEL,
            train=str(pool / "train.jsonl"),
            test=str(pool / "test.jsonl"),
            examples=EXAMPLES,
            group=task,
        )

    honest = [silo(f"honest-{k}", "cipher") for k in range(HONEST)]
    mallory = [silo(f"mallory-{k}", "cipher_b") for k in range(attackers)]
    roles = ["v", "o", "gate", "up", "down"]
    plan = {"rounds.total": rounds, "training.max_length": 64, "adapter.roles": roles}
    return Study.model_validate({"silo": [*honest, *mallory], "plan": plan})


def _round(
    federation: Federation, members: list[Participant], number: int, craft: Craft, result: RoundLosses
) -> None:
    victims, attackers = members[:HONEST], members[HONEST:]
    for client in victims:
        take_part(client, _brief(client, number))
    trained = [TrainingResult.read(_folder(client, number).path / TRAINED) for client in victims]
    for client in attackers:
        brief, folder = _brief(client, number), _folder(client, number)
        built = craft(trained, brief.training.seed)
        if built is not None:
            folder.write(TRAINED, built.to_bytes())
        folder.write(SKETCH, _folder(victims[0], number).read(SKETCH))
        take_part(client, brief)
    wait_until_published(federation, number)
    result.before.append([item.scores.served[LOSS].value for item in trained])
    result.after.append([item.scores.trained[LOSS].value for item in trained])


def _folder(client: Participant, number: int) -> RoundFolder:
    return client.workspace.rounds.open(number)


def _brief(client: Participant, number: int) -> RoundBrief:
    answer = client.session.api.current_round(client.session.federation_id)
    if not isinstance(answer, RoundBrief) or answer.round != number:
        raise RuntimeError(f"round {number} did not open")
    return answer
