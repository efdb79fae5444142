"""The ledger of releases: written first, never reset, with an enforced budget."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from client_agent.agent_entries import LEDGER
from client_agent.privacy.accountant import epsilon_of
from client_agent.privacy.budget import BudgetSpent, LedgerDamaged
from client_agent.privacy.ledger import Ledger
from client_agent.privacy.release import MeanRelease, Mechanism
from schemas.messages.federations import SignatureDpPlan

DP = SignatureDpPlan(epsilon=1.0, releases=4)
NOISY = Mechanism(sampled=64, records=64, noise_multiplier=8.0, clip=1.0, dim=4)


def pay(ledger: Ledger, number: int, mechanism: Mechanism = NOISY, federation: str = "f") -> float:
    book = ledger.priced(federation, number, mechanism, DP, None)
    ledger.write(book)
    return book.releases[-1].epsilon


def test_releases_add_up_until_the_budget_is_spent(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    spent = [pay(ledger, number) for number in (1, 2)]
    assert 0 < spent[0] < spent[1] <= 1.0
    assert spent[1] == epsilon_of([NOISY] * 2, DP.delta)
    dear = Mechanism(64, 64, noise_multiplier=2.0, clip=1.0, dim=4)
    before = (tmp_path / LEDGER).read_bytes()
    with pytest.raises(BudgetSpent, match=r"the privacy budget is spent: epsilon .* of 1"):
        pay(ledger, 3, dear)
    assert (tmp_path / LEDGER).read_bytes() == before


def test_releases_to_another_federation_count(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    spent = pay(ledger, 1, federation="one")
    assert pay(ledger, 1, federation="other") > spent


def test_larger_delta_keeps_sketches_budget(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for number in (1, 2):
        pay(ledger, number)
    wide = SignatureDpPlan(epsilon=1.0, delta=1e-2, releases=100)
    for number in (3, 4):
        ledger.write(ledger.priced("g", number, NOISY, wide, None))
    assert epsilon_of([NOISY] * 5, wide.delta) < 1.0 < epsilon_of([NOISY] * 5, DP.delta)
    with pytest.raises(BudgetSpent, match=r"of 1 at delta 1e-05"):
        ledger.priced("g", 5, NOISY, wide, None)
    book = ledger.read()
    assert book.sketch_delta == DP.delta
    assert book.sketch_epsilon == epsilon_of([NOISY] * len(book.releases), DP.delta) <= DP.epsilon


def test_pricing_a_release_writes_no_file(tmp_path: Path) -> None:
    Ledger(tmp_path).priced("f", 1, NOISY, DP, None)
    assert not (tmp_path / LEDGER).exists()


def test_damaged_or_lost_ledger_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    pay(ledger, 1)
    last = MeanRelease(np.ones(4), releases=1, noise_variance=1.0, spread=0.1, clip=1.0, epsilon=0.3)
    ledger.priced("f", 2, NOISY, DP, last)
    whole = (tmp_path / LEDGER).read_bytes()
    (tmp_path / LEDGER).write_bytes(whole[:-9])
    with pytest.raises(LedgerDamaged, match="restore the newest copy"):
        ledger.priced("f", 2, NOISY, DP, last)
    (tmp_path / LEDGER).unlink()
    with pytest.raises(LedgerDamaged, match="has 0 releases, and 1 were made"):
        ledger.priced("f", 2, NOISY, DP, last)


PAYS = """
import sys
from pathlib import Path
from tests.unit.client_agent.privacy.test_ledger import Ledger, pay
pay(Ledger(Path(sys.argv[1])), int(sys.argv[2]))
print("paid", flush=True)
sys.stdin.read()
"""


@pytest.mark.long
def test_release_is_charged_before_a_kill(tmp_path: Path) -> None:
    spent = [0.0]
    for number in (1, 2, 3):
        command = [sys.executable, "-c", PAYS, str(tmp_path), str(number)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "paid\n"
            child.send_signal(signal.SIGKILL)
        book = Ledger(tmp_path).read()
        assert [entry.round for entry in book.releases] == list(range(1, number + 1))
        spent.append(book.releases[-1].epsilon)
    assert spent == sorted(set(spent))
