"""One schedule: replicas, agents, an operator and adversaries, until the settled state."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.faults.fault_simulation.agents import Agent, SimulatedSilo, without_models
from tests.faults.fault_simulation.counting import groups_taken
from tests.faults.fault_simulation.disk import Disks
from tests.faults.fault_simulation.experts import banks_without_models
from tests.faults.fault_simulation.fault_rates import FEW_IN_SUMS, FaultRates, Plan, fault_rates_of, plan_of
from tests.faults.fault_simulation.oracle import Oracle
from tests.faults.fault_simulation.people import CuriousMember, EquivocatingMember, Historian, Operator
from tests.faults.fault_simulation.replicas import LEASE_SECONDS, Replica
from tests.faults.fault_simulation.scheduler import Killed, Process, Scheduler, Violation
from tests.faults.fault_simulation.seams import EPOCH, replaced_seams
from tests.faults.fault_simulation.storage import begin_anew, workplace
from tests.faults.fault_simulation.waits import virtual_waits

_SETTLING_SECONDS = 900.0
_WORKERS_SUFFER_SECONDS = 40.0


@dataclass(frozen=True)
class Outcome:
    """The result of a schedule."""

    seed: int
    digest: str
    steps: int
    seconds: float
    facts: dict[str, int]
    violation: str | None
    trace: list[str]


class World:
    """A schedule with its replicas, agents, operator and adversaries."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.plan: Plan = plan_of(seed)
        self.rates: FaultRates = fault_rates_of(seed, self.plan)
        self.scheduler = Scheduler(seed)
        self.scheduler.trace = [] if trace else None
        self.facts: dict[str, int] = {}
        self.ahead = 0.0  # how far the database's clock is before the schedule's
        self.turned_back = 0.0
        self.faults_begin_at: float | None = None
        self.in_sums: Counter[tuple[str, int]] = Counter()  # what befell which agent in sums
        self.disks = Disks(workplace() / "agents", lambda label: self.point(label, inside=True))
        self.nature = Process("nature")
        self.replicas: list[Replica] = []
        self.agents: list[Agent] = []
        self.silos: dict[int, SimulatedSilo] = {}
        self.done: set[str] = set()
        self.oracle = Oracle(self)
        self.operator: Operator

    # What the database and the disks ask.

    def point(self, label: str, *, inside: bool = False) -> None:
        """Interrupt the running process here and run others, unless `inside` a transaction."""
        task = self.scheduler.running_task()
        if task is None:
            return
        process = task.process
        if not process.alive:
            raise Killed
        aggregates = task.is_worker and self.oracle.ledger.holds_lease(process.name)
        suffers = self.has_faults or (task.is_worker and self.scheduler.now < self.faults_ended_at)
        if suffers:
            self._interrupt(process, label, often=aggregates or task.is_rare)
        if not inside:
            self.scheduler.sleep(self._delay(process, suffers=suffers, is_worker=task.is_worker))

    def is_due_in_sum(self, kind: str, agent: int, chance: float) -> bool:
        """Draw whether a fault of this kind is due for an agent in a sum; its number is limited."""
        befalls = self.in_sums[kind, agent] < FEW_IN_SUMS and self.scheduler.dice.random() < chance
        self.in_sums[kind, agent] += befalls
        return befalls

    def die_in_sum(self, label: str) -> None:
        """Kill the running agent at random where it sends a message of a sum."""
        process = self.scheduler.current().process
        if isinstance(process, Agent) and self.is_due_in_sum("dies", process.number, self.rates.sum_crash):
            self._crash_agent(process, f"a sum's {label}")
            raise Killed

    def disk_is_full(self) -> bool:
        """Draw whether the next write finds no space."""
        if not self.has_faults or self.scheduler.running_task() is None:
            return False
        is_full = self.scheduler.dice.random() < self.rates.disk_full
        if is_full:
            self.count("disk full")
        return is_full

    def committed(self) -> None:
        """Check the changes of a transaction."""
        task = self.scheduler.running_task()
        try:
            self.oracle.look(task.process.name if task is not None else "nobody")
        except Exception as error:  # not the product's, which might catch it
            self.scheduler.fail(error)

    def database_time(self) -> float:
        """The time of the database's clock, in seconds since 1970."""
        return EPOCH + self.scheduler.now + self.ahead

    # What everybody else asks.

    @property
    def has_faults(self) -> bool:
        """Whether faults happen now."""
        begins = self.faults_begin_at
        return begins is not None and self.scheduler.now < begins + self.rates.until

    @property
    def faults_ended_at(self) -> float:
        """The time of the last possible fault; tickers have faults longest."""
        if self.faults_begin_at is None:
            return 0.0
        return self.faults_begin_at + self.rates.until + _WORKERS_SUFFER_SECONDS

    def clock_of_agent(self, number: int) -> float:
        """The time of an agent's clock, in seconds."""
        return EPOCH + self.scheduler.now + self.rates.skews[number]

    def is_cut_off(self, agent: int, replica: int) -> bool:
        """Whether an agent cannot reach a replica now."""
        since = self.scheduler.now - (self.faults_begin_at or 0.0)
        return self.has_faults and any(
            begin <= since < end and (agent, replica) == (left, right)
            for begin, end, left, right in self.rates.partitions
        )

    def violated(self, promise: str, event: str) -> None:
        """End the schedule with a violation."""
        self.scheduler.say(f"VIOLATION {promise}: {event}")
        self.scheduler.fail(Violation(promise, event))

    def note_fault(self, event: str, error: BaseException) -> None:
        """Record an error that the product logs."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        self.scheduler.say(f"logged {event}: {message} ({place.name}:{place.lineno})")

    def count(self, fact: str) -> None:
        """Count an event for the report."""
        self.facts[fact] = self.facts.get(fact, 0) + 1

    def agent_is_done(self, agent: Agent) -> None:
        """Note that an agent has ended by itself."""
        self.done.add(agent.name.partition(".")[0])

    def index_of_clients(self) -> dict[str, int]:
        """Return the agents' numbers by client id."""
        named = self.oracle.ledger.connection.execute("SELECT id, name FROM clients ORDER BY id").fetchall()
        return {client: int(name.removeprefix("c")) for client, name in named}

    def begin_faults(self) -> None:
        """Start the faults."""
        self.faults_begin_at = self.scheduler.now
        for when, seconds in self.rates.jumps:
            self.scheduler.spawn(self.nature, lambda by=seconds: self._jump(by), delay=when)

    # What happens.

    def _delay(self, process: Process, *, suffers: bool, is_worker: bool) -> float:
        """Draw a delay: usually short, and sometimes long for a single thread."""
        dice = self.scheduler.dice
        slow = self.rates.slow * (3.0 if is_worker else 1.0)
        if isinstance(process, Replica) and suffers and dice.random() < slow:
            return dice.uniform(0.0, 1.5 * LEASE_SECONDS)
        return dice.expovariate(50.0)

    def _interrupt(self, process: Process, label: str, *, often: bool) -> None:
        dice, rates = self.scheduler.dice, self.rates
        draw = dice.random()
        if isinstance(process, Replica):
            more = 15.0 if often else 1.0
            if draw < rates.replica_crash * more:
                self._crash_replica(process, label)
                raise Killed
            if draw < (rates.replica_crash + rates.replica_stall) * more:
                seconds = dice.uniform(0.3, 2.5) * LEASE_SECONDS
                process.stopped_until = self.scheduler.now + seconds
                self.count("stalls")
                self.scheduler.say(f"{process.name} stops for {seconds:.1f} s at {label}")
        elif isinstance(process, Agent) and draw < rates.agent_crash:
            self._crash_agent(process, label)
            raise Killed

    def _crash_replica(self, replica: Replica, label: str) -> None:
        self.scheduler.say(f"{replica.name} dies at {label}")
        self.count(f"replica dies at {label}")
        self.scheduler.kill(replica)

        def restart() -> None:
            self.replicas[replica.number] = Replica(self, replica.number, life=replica.life + 1)

        self.scheduler.spawn(self.nature, restart, delay=self.scheduler.dice.uniform(0.2, 15.0))

    def _crash_agent(self, agent: Agent, label: str) -> None:
        self.scheduler.say(f"{agent.name} dies at {label}")
        self.count(f"agent dies at {label}")
        self.scheduler.kill(agent)
        lost = []
        if self.scheduler.dice.random() < self.rates.power:
            lost = self.disks.lose_power(agent.folder)
            self.scheduler.say(f"{agent.name} loses {len(lost)} files")
        # Whoever was replacing a key may finish that, or forget about it and run.
        self._restart_agent(agent, rotating=agent.rotating and self.scheduler.dice.random() < 0.5)

    def stop_to_replace_key(self, agent: Agent) -> None:
        """End an agent's process; the next one begins with a new key."""
        self.scheduler.say(f"{agent.name} stops, to replace its key")
        self.count("keys to be replaced")
        self.scheduler.kill(agent)
        self._restart_agent(agent, rotating=True)

    def _restart_agent(self, agent: Agent, *, rotating: bool) -> None:
        def restart() -> None:
            place = self.agents.index(agent)
            self.agents[place] = Agent(
                self, agent.index, agent.token, life=agent.life + 1, thief=agent.thief, rotating=rotating
            )

        self.scheduler.spawn(self.nature, restart, delay=self.scheduler.dice.uniform(0.2, 10.0))

    def _jump(self, seconds: float) -> None:
        self.ahead += seconds
        self.turned_back += max(0.0, -seconds)
        self.count("clock jumps")
        self.scheduler.say(f"the database's clock jumps by {seconds:.1f} s")

    def _is_over(self) -> bool:
        return self.operator.has_begun and len(self.done) == len(self.agents)

    def run(self) -> None:
        """Run the schedule.

        Raises:
            Violation: a promise was broken.
        """
        begin_anew()
        self.disks.clear()
        self.oracle.open()
        for number in range(self.plan.replicas):
            self.replicas.append(Replica(self, number))
        self.operator = Operator(self)
        EquivocatingMember(self)
        CuriousMember(self)
        Historian(self)
        try:
            self.scheduler.run(self._is_over, _SETTLING_SECONDS)
            self.oracle.settle(is_over=self._is_over())
        finally:
            self.scheduler.end()
            self.oracle.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Ignore the agents' log, and keep errors of the coordinator's."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def run_schedule(seed: int, *, trace: bool = False) -> Outcome:
    """Play one schedule to its end."""
    world = World(seed, trace=trace)
    scheduler, violation = world.scheduler, None
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        stack.enter_context(replaced_seams(seed, lambda: scheduler.now, world.note_fault))
        stack.enter_context(world.disks.recorded())
        stack.enter_context(without_models())
        stack.enter_context(groups_taken(world.plan))
        stack.enter_context(banks_without_models(world.plan))
        stack.enter_context(virtual_waits(scheduler))
        try:
            world.run()
        except Violation as broken:
            violation = str(broken)
    return Outcome(
        seed, scheduler.digest, scheduler.steps, scheduler.now, world.facts, violation, scheduler.trace or []
    )
