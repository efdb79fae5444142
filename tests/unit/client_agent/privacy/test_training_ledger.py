"""The ledger of private training: steps are charged first, repeated ones again, also after kills."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from client_agent.agent_entries import LEDGER
from client_agent.privacy.accountant import epsilon_of_counted
from client_agent.privacy.budget import LedgerDamaged, TrainingBudgetSpent
from client_agent.privacy.ledger import Ledger
from client_agent.privacy.release import Mechanism
from schemas.messages.private_training import PrivateTrainingPlan
from schemas.privacy import training_status
from tests.unit.client_agent.privacy.test_ledger import NOISY as SKETCH
from tests.unit.client_agent.privacy.test_ledger import pay as pay_sketch

DP = PrivateTrainingPlan(epsilon=1.0, steps=30)
NOISY = Mechanism(sampled=8, records=64, noise_multiplier=3.0, clip=1.0, dim=4)


def pay(folder: Path, number: int, steps: int, mechanism: Mechanism = NOISY, federation: str = "f") -> None:
    ledger = Ledger(folder)
    ledger.write(ledger.with_steps(federation, number, mechanism, steps, DP))


def begin(folder: Path, number: int, steps: int) -> None:
    for _ in range(steps):
        Ledger(folder).begin_step("f", number, NOISY)


def paid(folder: Path) -> int:
    return sum(entry.steps for entry in Ledger(folder).read().training)


def test_steps_are_charged_once_and_again_if_repeated(tmp_path: Path) -> None:
    pay(tmp_path, 1, 6)
    pay(tmp_path, 1, 6)  # started again before any step
    assert paid(tmp_path) == 6
    begin(tmp_path, 1, 4)
    pay(tmp_path, 1, 2)  # resumed where it stopped
    assert paid(tmp_path) == 6
    pay(tmp_path, 1, 5)  # resumed three steps earlier, after a kill
    assert paid(tmp_path) == 9
    begin(tmp_path, 1, 5)
    with pytest.raises(LedgerDamaged, match="has no step of round 1 that was paid for and not begun"):
        begin(tmp_path, 1, 1)
    pay(tmp_path, 1, 6)  # the whole round anew, as after the end of a pack
    assert paid(tmp_path) == 15
    spent = [entry.epsilon for entry in Ledger(tmp_path).read().training]
    assert spent == sorted(spent)
    assert spent[-1] == epsilon_of_counted([(NOISY, 15)], DP.delta)


def test_steps_of_other_mechanisms_or_federations_add_up(tmp_path: Path) -> None:
    pay(tmp_path, 1, 4)
    changed = Mechanism(sampled=8, records=63, noise_multiplier=3.0, clip=1.0, dim=4)
    pay(tmp_path, 1, 4, changed)
    pay(tmp_path, 1, 4, federation="g")
    assert paid(tmp_path) == 12
    (*_, last) = Ledger(tmp_path).read().training
    assert last.epsilon == epsilon_of_counted([(NOISY, 8), (changed, 4)], DP.delta)


def test_spent_training_budget_is_refused_with_a_remedy(tmp_path: Path) -> None:
    pay(tmp_path, 1, 10)
    before = (tmp_path / LEDGER).read_bytes()
    with pytest.raises(
        TrainingBudgetSpent,
        match=r"of 1 at delta 1e-05, and 3000 more steps would make it .*larger privacy\.training\.epsilon",
    ):
        pay(tmp_path, 2, 3000)
    assert (tmp_path / LEDGER).read_bytes() == before


def test_ledger_composes_sketches_and_training(tmp_path: Path) -> None:
    pay(tmp_path, 1, 6)
    pay_sketch(Ledger(tmp_path), 1)
    pay(tmp_path, 2, 6)
    book = Ledger(tmp_path).read()
    assert [len(book.releases), len(book.training)] == [1, 2]
    both = book.together(DP.delta)
    assert both == epsilon_of_counted([(SKETCH, 1), (NOISY, 12)], DP.delta)
    alone = (book.releases[-1].epsilon, book.training[-1].epsilon)
    assert max(alone) < both < sum(alone)


def test_larger_delta_keeps_earlier_budget(tmp_path: Path) -> None:
    """A plan with a larger delta adds releases only while the earlier pair holds over all of them."""
    pay(tmp_path, 1, 20)
    ledger = Ledger(tmp_path)
    (first,) = ledger.read().training
    assert first.budget == DP.epsilon
    assert first.epsilon < 1.0
    wide = PrivateTrainingPlan(epsilon=1.0, delta=1e-2, steps=30)
    fits, exceeds = 4, 20
    assert epsilon_of_counted([(NOISY, 20 + exceeds)], wide.delta) < wide.epsilon
    ledger.with_steps("g", 1, NOISY, fits, wide)
    with pytest.raises(TrainingBudgetSpent, match=r"at delta 1e-05, and .*training\.delta of 1e-05 or less"):
        ledger.with_steps("g", 1, NOISY, exceeds, wide)
    larger = PrivateTrainingPlan(epsilon=2.0, steps=60)
    ledger.with_steps("g", 1, NOISY, exceeds, larger)  # which an operator has raised at the same delta


def test_spent_budget_is_of_smallest_delta(tmp_path: Path) -> None:
    pay(tmp_path, 1, 10)
    ledger = Ledger(tmp_path)
    wide = PrivateTrainingPlan(epsilon=1.0, delta=1e-2, steps=30)
    ledger.write(ledger.with_steps("g", 1, NOISY, 2, wide))
    book = ledger.read()
    assert book.training_delta == DP.delta
    assert book.training_epsilon == epsilon_of_counted([(NOISY, 12)], DP.delta)
    assert "at delta 1e-05, the smallest" in training_status(wide, book.training_epsilon, book.training_delta)


BEGINS = """
import sys
from pathlib import Path
from tests.unit.client_agent.privacy.test_training_ledger import begin, pay
pay(Path(sys.argv[1]), 1, 5)
begin(Path(sys.argv[1]), 1, 3)
print("begun", flush=True)
sys.stdin.read()
"""


@pytest.mark.long
def test_step_is_charged_before_a_kill(tmp_path: Path) -> None:
    """No checkpoint was stored: all five steps are to be done again, and three were begun."""
    for died, total in ((1, 5), (2, 8), (3, 11)):
        command = [sys.executable, "-c", BEGINS, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "begun\n"
            child.send_signal(signal.SIGKILL)
        book = Ledger(tmp_path).read()
        assert sum(entry.begun for entry in book.training) == 3 * died
        assert paid(tmp_path) == total
    assert book.training[-1].epsilon == epsilon_of_counted([(NOISY, 11)], DP.delta)
