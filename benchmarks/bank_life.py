"""Play the life of a bank of experts in one process: its choices, sums and rules, without HTTP and masks.

    python -m benchmarks.bank_life [STUDY.toml] [--seed N] [--rounds N] [--never-merge]

Silos, plan and options are those of the first method of a study; `joins_after` counts. Clients choose and
train as agents do; differences of losses are encoded and summed as in a federation, and the coordinator's
own rules change the bank. A line of each round has the users of each expert by task; then come the costs,
and the changes with their reasons. The last line has the mean test loss.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from client_agent.experts.memory import Choice, ExpertMemory
from client_agent.experts.probe_set import Prober, probe_texts
from client_agent.experts.routed_experts import RoutedExperts, inject_experts
from client_agent.model.examples import encode_for
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.model.tokens import TokenizedText
from client_agent.training.data import with_probe
from client_agent.training.evaluate import mean_loss
from client_agent.training.loop import train
from coordinator.experts import products
from coordinator.experts.bank import Bank, RoundCounts, RoundSums, new_bank
from coordinator.experts.equivalence import Cost, Pair, costs_of, upper_bound
from coordinator.experts.registry import after_round, is_birth_due
from coordinator.strategies.bank_rules import BankPlan, Rules
from coordinator.strategies.opening import open_plan
from schemas.maths.bank import SHARED, bank_tensor, expert_tensors, exploring_rounds, first_a_of, m_step
from schemas.messages.federations import FederationPlan
from schemas.secure_sum.encoding import dequantise, largest_encoded, quantise
from schemas.strategies.fed_vemoe import FedVemoeOptions
from studies.methods import methods_of, plan_of
from studies.partition import draw_examples
from studies.study import Study, read_study

SCENE: Final = Path(__file__).resolve().parent.parent / "examples" / "studies" / "bank_scene.toml"
NEVER: Final = 64

State = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Silo:
    """A silo: its group, the round after which it joins, its texts, and what it remembers of its choices."""

    name: str
    group: str
    joins_after: int
    train: tuple[TokenizedText, ...]
    test: tuple[TokenizedText, ...]
    prober: Prober
    memory: ExpertMemory


@dataclass
class Life:
    """A bank with its values, and the silos beside it."""

    base: BaseModel
    plan: FederationPlan
    learning_rate: float
    bits: int
    options: FedVemoeOptions
    rules: Rules
    silos: Sequence[Silo]
    bank: Bank
    state: State
    adapter: RoutedExperts
    changes: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, study: Study, seed: int, folder: Path, *, rounds: int | None, merges: bool) -> Life:
        """Return the beginning of a study's first method.

        Raises:
            SystemExit: the plan has no fixed learning rate, or no sums.
        """
        plan = plan_of(study, methods_of(study)[0], seed, None)
        rate, summed = plan.training.learning_rate, plan.privacy.secure_sum
        if rate == "auto" or summed is None:
            raise SystemExit("a bank is played with a fixed training.learning_rate and privacy.secure_sum")
        if rounds is not None:
            plan = plan.model_copy(update={"rounds": plan.rounds.model_copy(update={"total": rounds})})
        opened = open_plan(plan)
        options, bank_plan = cast(FedVemoeOptions, opened.options), cast(BankPlan, opened.strategy.bank)
        rules = bank_plan.rules if merges else replace(bank_plan.rules, merge_patience=NEVER)
        base = load_base_model(study.silo[0].model, device=torch.device("cpu"))
        explored = exploring_rounds(bank_plan.explore_rounds, plan.rounds.total)
        bank = new_bank(bank_plan.experts, rules, explored)
        adapter = _injected(base, plan, options, bank)
        silos = list(_silos(study, seed, base, options, plan.training.max_length, folder))
        state = adapter.state()
        return cls(base, plan, rate, summed.bits, options, rules, silos, bank, state, adapter)

    def play(self, number: int) -> None:
        """Play one round, and print it."""
        silos = [silo for silo in self.silos if silo.joins_after < number]
        trained = [self._trained(silo, number) for silo in silos]
        choices = [silo.memory.rounds[number] for silo in silos]
        users = Counter(expert for choice in choices for expert in choice.trained)
        counts = RoundCounts(len(silos), users, sum(choice.rejects for choice in choices))
        bears = is_birth_due(self.bank, self.rules, counts, 0, number)
        summed = [expert for expert, count in users.items() if count >= self.rules.k_min]
        sums = RoundSums(
            counts,
            {
                expert: sum(choice.responsibilities[expert] for choice in _of(choices, expert))
                for expert in summed
            },
            bears,
            _costs(choices, summed, [e.expert for e in self.bank.active], self.rules.k_min, self.bits),
            1 / largest_encoded(self.bits),
        )
        outcome = after_round(self.bank, self.rules, sums, number)
        before, self.state = self.state, self._moved(trained, choices, summed)
        for event in outcome.events:
            self.changes[event.change] += 1
            if event.change == "born":
                self.state |= self._newborn(before, trained, choices, event.expert)
        self._print(
            number, silos, choices, sums, [f"{e.change} {e.expert}: {e.reason}" for e in outcome.events]
        )
        actives = {expert.expert for expert in self.bank.active}
        self.bank = outcome.bank
        if actives != {expert.expert for expert in self.bank.active}:
            self.adapter.remove()
            self.adapter = _injected(self.base, self.plan, self.options, self.bank)
            self.state = {name: self.state[name] for name in self.adapter.layout}

    def test_loss(self) -> float:
        """Return the mean over silos of the test loss of what each is served."""
        losses = []
        for silo in self.silos:
            self.adapter.probe_with(silo.prober, silo.memory)
            self.adapter.load(self.state)
            losses.append(mean_loss(self.base, silo.test))
        return float(np.mean(losses))

    def _trained(self, silo: Silo, number: int) -> State:
        """Return what a silo learns in a round."""
        training, adapter = self.plan.training, self.adapter
        adapter.probe_with(silo.prober, silo.memory)
        adapter.load(self.state)
        turns = adapter.begin_round(number, self.plan.rounds.total, training.steps)
        for index, turn in enumerate(turns):
            adapter.choose(turn.specialists)
            train(
                self.base,
                adapter,
                silo.train,
                training.model_copy(update={"steps": turn.steps}),
                learning_rate=self.learning_rate,
                seed=training.seed,
                round_number=(number - 1) * len(turns) + index + 1,
                total_rounds=self.plan.rounds.total * len(turns),
            )
        learnt = {name: values - self.state[name] for name, values in adapter.state().items()}
        adapter.end_round()
        return learnt

    def _moved(self, learnt: Sequence[State], choices: Sequence[Choice], summed: Sequence[int]) -> State:
        """Return the bank after the M-step."""
        state = dict(self.state)
        weights = {SHARED: [1.0] * len(choices)} | {
            k: [c.responsibilities[k] if k in c.trained else 0.0 for c in choices] for k in summed
        }
        for expert, shares in weights.items():
            for name in self.state:
                if name.startswith(bank_tensor(expert, "")):
                    total = sum(share * change[name] for share, change in zip(shares, learnt, strict=True))
                    values = state[name].astype(np.float64)
                    moved = m_step(values, np.asarray(total, np.float64), sum(shares), 1.0)
                    state[name] = moved.astype(np.float32)
        return state

    def _newborn(
        self, before: State, learnt: Sequence[State], choices: Sequence[Choice], expert: int
    ) -> State:
        rejecting = [change for change, choice in zip(learnt, choices, strict=True) if choice.rejects]
        shared = expert_tensors(SHARED, before)
        mean = {
            name: np.asarray(np.mean([change[bank_tensor(SHARED, name)] for change in rejecting], axis=0))
            for name in shared
        }
        seed = self.plan.training.seed
        start = {n: first_a_of(expert, n, v.shape, seed) for n, v in shared.items() if n.endswith(".A")}
        born = products.newborn(shared, mean, start)
        return {bank_tensor(expert, name): values for name, values in born.items()}

    def _print(
        self,
        number: int,
        silos: Sequence[Silo],
        choices: Sequence[Choice],
        sums: RoundSums,
        changes: Sequence[str],
    ) -> None:
        shares: dict[str, Counter[int]] = {}
        for silo, choice in zip(silos, choices, strict=True):
            shares.setdefault(silo.group, Counter())[choice.trained[0]] += 1
        groups = "; ".join(
            f"{group} {' '.join(f'{k}x{n}' for k, n in share.most_common())}"
            for group, share in shares.items()
        )
        drawn = ", drawn" if choices[0].exploring else ""
        print(f"round {number}: {sums.counts.rejects} of {len(silos)} reject{drawn}; {groups}", flush=True)
        if not drawn:
            for (expert, substitute), cost in sorted(sums.costs.items()):
                bound = upper_bound(cost, sums.step)
                mean = cost.total / cost.members
                print(
                    f"    {substitute} for {expert}: {mean:.4f}, below {bound:.4f} ({cost.members} members)"
                )
        for change in changes:
            print(f"    {change}", flush=True)


def _silos(
    study: Study, seed: int, base: BaseModel, options: FedVemoeOptions, max_length: int, folder: Path
) -> Sequence[Silo]:
    silos = []
    drawn = draw_examples(study, seed)
    for silo in study.silo:
        data = with_probe(drawn[silo.name], options.probe_examples)
        memory = ExpertMemory(folder / f"{silo.name}.json")
        memory.secret = sha256(f"{seed} {silo.name}".encode()).hexdigest()  # a run can be repeated
        texts = probe_texts(base, data.probe, options.probe_examples, max_length)
        learnt, tested = encode_for(base, data.train, max_length), encode_for(base, data.test, max_length)
        prober = Prober(base, texts, memory.losses)
        group = silo.group or silo.name
        silos.append(Silo(silo.name, group, silo.joins_after, learnt, tested, prober, memory))
    return silos


def _injected(base: BaseModel, plan: FederationPlan, options: FedVemoeOptions, bank: Bank) -> RoutedExperts:
    experts = [SHARED, *(expert.expert for expert in bank.active)]
    return inject_experts(base, plan.adapter, {}, experts, options, seed=plan.training.seed)


def _of(choices: Sequence[Choice], expert: int) -> list[Choice]:
    return [choice for choice in choices if expert in choice.trained]


def _costs(
    choices: Sequence[Choice], summed: Sequence[int], active: Sequence[int], least: int, bits: int
) -> Mapping[Pair, Cost]:
    costs: dict[Pair, Cost] = {}
    for expert in summed:
        peers = [peer for peer in active if peer != expert]
        total = np.zeros(1 + 2 * len(peers), np.int64)
        for choice in _of(choices, expert):
            differences = np.array([(choice.differences or {})[expert][peer] for peer in peers])
            values = np.concatenate([[1.0], differences, differences**2]).astype(np.float32)
            total += quantise(values, 2**20, bits)
        costs |= costs_of(expert, peers, dequantise(total, 2**20, bits).tolist(), least)
    return costs


def main() -> None:
    """Play a bank's life."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bank_life", description=__doc__)
    parser.add_argument("study", type=Path, nargs="?", default=SCENE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--never-merge", action="store_true", help="for comparison: merge no experts")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        study = read_study(arguments.study)
        life = Life.of(
            study, arguments.seed, Path(folder), rounds=arguments.rounds, merges=not arguments.never_merge
        )
        for number in range(1, life.plan.rounds.total + 1):
            life.play(number)
        active = len(life.bank.active)
        print(f"{dict(life.changes)}; {active} experts at the end; mean test loss {life.test_loss():.5f}")


if __name__ == "__main__":
    main()
