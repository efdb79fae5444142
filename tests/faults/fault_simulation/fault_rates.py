"""The draws of a seed: the size of the federation, the misbehaving actors, and the rates of faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from schemas.messages.recipes import NAMED, RecipeName, WeightsRecipeName
from schemas.messages.sum_plan import Masking
from tests.faults.fault_simulation.bank_drawn import BankDrawn, bank_of
from tests.faults.fault_simulation.replicas import LEASE_SECONDS

LAST_ROUND = 15
"""A schedule with more rounds than this does not get anywhere."""

NOISE = 8
"""Values of an update that say nothing, and whose sum depends on its order."""

_RECIPES: tuple[tuple[RecipeName, int], ...] = (
    ("dense", 40),
    ("int8", 5),
    ("int8_own_last", 5),
    ("int4_own_last", 20),
    ("int4_served", 20),
    ("top10_int8_served", 10),
)
DIFFERENCES = 0.4
"""The share of schedules whose weights are published as differences to those before."""

_WEIGHTS: tuple[WeightsRecipeName, ...] = ("dense", "int8_own_last", "int4_own_last")
PUBLISHED: tuple[WeightsRecipeName, ...] = ("int8", "int4")


SUMMED = 0.12
"""The share of schedules whose updates are summed; each takes as long as several others."""

PRIVATE = 0.1
"""The share of schedules whose training is differentially private."""

COUNTED = 0.5
"""The share of them in which members are counted before the sum."""

CLIP = 4.0
"""The largest change of a value that is summed; noise may be larger, and is clipped."""

FEW_IN_SUMS = 2
"""How often an agent dies in a sum, and how often a message of it there is late."""

MOST_LIES = 4
"""Lies of a coordinator in a schedule: with more of them no sum would be opened."""

ATTEMPTS = 3
"""Sessions of a sum in a round; a round with more failures is abandoned."""


@dataclass(frozen=True)
class SumDrawn:
    """How the updates of a schedule are summed.

    `lies` is how often the coordinator lies to a member; `counts`: members of groups are counted before.
    """

    masking: Masking
    minimum: int
    phase_seconds: int
    weigh_up_to: int | None
    lies: float
    counts: bool
    bank: BankDrawn | None = None


@dataclass(frozen=True)
class Plan:
    """The plan of a schedule: sizes, recipes and actors."""

    replicas: int
    agents: int
    rounds: int
    min_clients: int
    quorum: int
    collect_seconds: float
    rank: int
    thief: bool
    two_mouthed: bool
    curious: bool
    sluggish: bool
    revoked: int
    revoked_while: str
    pause: bool
    finish_early: bool
    rotations: int
    at_once: bool
    recipe: RecipeName
    weights_recipe: WeightsRecipeName
    compression: Literal["none", "zstd"]
    aligned: bool
    packs_before: int
    replaces_pack: bool
    keep_rounds: int | None
    summed: SumDrawn | None = None
    private: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether updates arrive without rounding."""
        return self.recipe == "dense"

    @property
    def values(self) -> int:
        """The number of values of an update."""
        return self.rank * self.rank + self.rank

    def place(self, number: int, agent: int) -> int:
        """Where an agent's update of a round has its 1."""
        return (number - 1) * self.agents + agent


@dataclass(frozen=True)
class FaultRates:
    """The chances of faults per occasion, until `until`.

    `sum_crash` and `sum_late` are for a message of a sum, whenever it is sent: sums take a few seconds at the
    end of a round. They happen to an agent FEW_IN_SUMS times in all.
    """

    until: float
    replica_crash: float
    replica_stall: float
    slow: float
    agent_crash: float
    power: float
    disk_full: float
    lost_request: float
    lost_reply: float
    cut: float
    twice: float
    late: float
    partitions: tuple[tuple[float, float, int, int], ...]
    jumps: tuple[tuple[float, float], ...]
    skews: tuple[float, ...]
    sum_crash: float
    sum_late: float

    @property
    def is_prompt(self) -> bool:
        """Whether running replicas are never delayed."""
        return self.replica_stall == 0 and self.slow == 0


def plan_of(seed: int) -> Plan:
    """Draw the plan of a schedule."""
    dice, wires, packs, past = (
        random.Random(f"{stream} {seed}") for stream in ("plan", "wire", "packs", "past")
    )
    recipe = wires.choices([name for name, _ in _RECIPES], [often for _, often in _RECIPES])[0]
    agents = dice.choices([3, 4, 5, 8, 20], [45, 35, 15, 4, 1])[0]
    thief = dice.random() < 0.2
    revoked = dice.choices([0, 1], [60, 40])[0] if agents > 3 else 0
    min_clients = max(2, dice.choice([agents, agents - 1, agents // 2]) - revoked - thief)
    keep_rounds = past.choice([1, 1, 1, 2, 2, 3]) if past.random() < 0.25 else None
    more = past.choice([1, 2, 3])  # rounds that are published when the first is old
    rank = 1
    while rank * rank + rank < agents * LAST_ROUND + NOISE:
        rank += 1
    plan = Plan(
        replicas=dice.choices([1, 2, 3], [25, 40, 35])[0],
        agents=agents,
        rounds=max(dice.choice([1, 2, 2, 3]), keep_rounds + more if keep_rounds is not None else 0),
        min_clients=min_clients,
        quorum=dice.randint(1, min_clients),
        collect_seconds=dice.choice([8.0, 15.0, 40.0]),
        rank=rank,
        thief=thief,
        two_mouthed=dice.random() < 0.3,
        curious=dice.random() < 0.2,
        sluggish=dice.random() < 0.5,
        revoked=revoked,
        revoked_while=dice.choice(["update", "join"]),
        pause=dice.random() < 0.1,
        finish_early=dice.random() < 0.05,
        rotations=dice.choice([0, 0, 1, 2]),
        at_once=dice.random() < 0.5,
        recipe=recipe,
        weights_recipe=_asked_for(recipe, wires),
        compression=wires.choice(["none", "zstd"]),
        aligned=packs.random() < 0.2,
        packs_before=packs.choice([0, 0, 1, 2]),
        replaces_pack=packs.random() < 0.5,
        keep_rounds=keep_rounds,
    )
    return _private(seed, _with_differences(seed, _summed(seed, plan)))


def _private(seed: int, plan: Plan) -> Plan:
    """Make the training of some plans private; agents that choose experts cannot train so."""
    has_bank = plan.summed is not None and plan.summed.bank is not None
    return replace(plan, private=not has_bank and random.Random(f"private {seed}").random() < PRIVATE)


def _with_differences(seed: int, plan: Plan) -> Plan:
    """Publish the weights of some plans as differences, whatever their recipe of updates."""
    dice = random.Random(f"differences {seed}")
    if dice.random() >= DIFFERENCES:
        return plan
    return replace(plan, weights_recipe=dice.choices(PUBLISHED, [70, 30])[0])


def _summed(seed: int, plan: Plan) -> Plan:
    """Make some plans ones of five to eight agents whose updates are summed."""
    dice = random.Random(f"sums {seed}")
    if dice.random() >= SUMMED:
        return plan
    agents = dice.choice([5, 5, 6, 7, 8])
    minimum = dice.randint(3, 4)
    drawn = SumDrawn(
        masking=dice.choices(["pairwise", "none"], [85, 15])[0],
        minimum=minimum,
        phase_seconds=dice.choice([8, 15, 30]),
        weigh_up_to=dice.choice([None, None, 40]),
        lies=dice.choice([0.0, 0.0, 0.3]),
        counts=random.Random(f"counts {seed}").random() < COUNTED,
    )
    if drawn.counts:
        drawn = replace(drawn, bank=bank_of(seed))
    revoked = dice.choice([0, 1])
    # Without the client that is revoked and the one whose key is stolen, a sum still has its members:
    # otherwise the round would wait for ever.
    agents = max(agents, minimum + revoked + plan.thief)
    rank = 1
    while rank * rank + rank < agents * LAST_ROUND + NOISE:
        rank += 1
    least = max(minimum, agents - dice.choice([0, 1, 2]) - revoked - plan.thief)
    return replace(
        plan,
        agents=agents,
        rounds=_summed_rounds(plan, drawn),
        min_clients=least,
        quorum=dice.randint(minimum, least),
        revoked=revoked,
        revoked_while=dice.choice(["join", "ready", *"01234"]),
        rank=rank,
        recipe="dense",
        weights_recipe="dense",
        aligned=False,
        summed=drawn,
    )


def _summed_rounds(plan: Plan, drawn: SumDrawn) -> int:
    """Return how many rounds are summed: few, but a bank changes with its second."""
    if drawn.bank is not None:
        return max(2, min(plan.rounds, 3))
    return min(plan.rounds, 2) if plan.keep_rounds is None else plan.rounds


def _asked_for(recipe: RecipeName, dice: random.Random) -> WeightsRecipeName:
    """Draw how agents ask for their weights; what is the difference to them needs them whole."""
    if NAMED[recipe].reference == "served":
        return "dense"
    return dice.choices(_WEIGHTS, [40, 40, 20])[0]


def fault_rates_of(seed: int, plan: Plan) -> FaultRates:
    """Draw the rates of faults: in every schedule some are frequent, and some are 0."""
    # Recorded seeds repeat their schedules as long as these words stay.
    dice = random.Random(f"weather {seed}")
    until = dice.uniform(20.0, 80.0)

    def chance(*often: float) -> float:
        return dice.choice([0.0, *often])

    in_sums = random.Random(f"sum weather {seed}")
    return FaultRates(
        sum_crash=in_sums.choice([0.0, 0.05, 0.2]),
        sum_late=in_sums.choice([0.0, 0.05, 0.2]),
        until=until,
        replica_crash=chance(0.002, 0.006, 0.015),
        replica_stall=chance(0.002, 0.006),
        slow=chance(0.01, 0.05),
        agent_crash=chance(0.005, 0.02),
        power=dice.choice([0.0, 0.5, 1.0]),
        disk_full=chance(0.01, 0.05),
        lost_request=chance(0.03, 0.15),
        lost_reply=chance(0.05, 0.2),
        cut=chance(0.1),
        twice=chance(0.1, 0.3),
        late=chance(0.05, 0.15),
        partitions=tuple(
            (begin, begin + dice.uniform(3.0, 40.0), dice.randrange(plan.agents), dice.randrange(3))
            for begin in [dice.uniform(0.0, until) for _ in range(dice.choice([0, 0, 2, 5]))]
        ),
        jumps=tuple((dice.uniform(0.0, until), _jump(dice)) for _ in range(dice.choice([0, 0, 1, 2]))),
        skews=tuple(dice.choice([0.0, dice.uniform(-60.0, 60.0), 4000.0]) for _ in range(plan.agents + 1)),
    )


def _jump(dice: random.Random) -> float:
    forward = dice.choice([dice.uniform(1.0, 2 * LEASE_SECONDS), 130.0, 3700.0, 9000.0])
    return dice.choice([forward, forward, -dice.uniform(1.0, LEASE_SECONDS)])
