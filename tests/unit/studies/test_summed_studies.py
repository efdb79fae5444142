"""Comparison of methods with secure sums: silos train in turn and sum together, with equal weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load

from client_agent.errors import StudyUnusable
from client_agent.rounds.final_weights import finish
from client_agent.rounds.participant import Participant
from client_agent.storage.round_folder import FINAL_WEIGHTS, RECEIPT
from client_agent.transport.admin_client import Operator
from schemas.messages.rounds import FinishedBrief
from studies import silo_work
from studies.clients import SharedModels
from studies.methods import methods_of, plan_of
from studies.results import CellResult, cells_of
from studies.run_cell import run_cell
from studies.study import Study
from studies.worker_context import WorkerContext
from tests.scene.coordinator import ADMIN_TOKEN, Served
from tests.scene.studies import silo_table, study

STUDY = """
[method.plain]
like = "fedit"
rounds.total = 1
wire.recipe = "dense"
[method.masked]
like = "plain"
privacy.secure_sum = {minimum = 3, clip = 0.05}
[method.unmasked]
like = "masked"
privacy.secure_sum.masking = "none"
"""


def three_silos(folder: Path) -> Study:
    return study(folder, silo_table("aster"), silo_table("birch", "flip"), silo_table("cedar"), more=STUDY)


class FinalWeights:
    """The final weights of each run, read before its folders are deleted."""

    def __init__(self) -> None:
        self.weights: dict[str, dict[str, NDArray[np.float32]]] = {}
        self.files: dict[str, set[str]] = {}
        self.run = ""

    def finish(self, participant: Participant, brief: FinishedBrief) -> None:
        finish(participant, brief)
        home = participant.workspace.home
        names = {file.name for file in (home / "rounds").rglob("*") if file.is_file()}
        self.files.setdefault(self.run, set()).update(names)
        content = (home / FINAL_WEIGHTS).read_bytes()
        self.weights[f"{self.run} {participant.workspace.folder.name}"] = load(content)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_plain_and_summed_fedavg_end_with_equal_weights(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, finals = three_silos(tmp_path), FinalWeights()
    monkeypatch.setattr(silo_work, "finish", finals.finish)
    results: dict[str, CellResult] = {}
    with Operator(served.url, ADMIN_TOKEN) as operator:
        context = WorkerContext(read, tmp_path / "out", operator, SharedModels())
        for cell in cells_of(read, methods_of(read, ["plain", "masked", "unmasked"]), [0]):
            finals.run = cell.method
            results[cell.method] = run_cell(context, cell, lambda rounds, activity: None)
    quantum = 0.05 / 32_767  # each input is off by less than that, and so is their mean
    for summed in ("masked", "unmasked"):
        assert RECEIPT not in finals.files[summed]
        for silo in ("aster", "birch", "cedar"):
            plain = finals.weights[f"plain {silo}"]
            for name, values in finals.weights[f"{summed} {silo}"].items():
                assert np.abs(values - plain[name]).max() < quantum + 1e-7, name
    for masked, others in zip(results["masked"].clients, results["plain"].clients, strict=True):
        for a, b in zip(masked.rounds, others.rounds, strict=True):
            assert (a.scores.trained, a.scores.kept) == (b.scores.trained, b.scores.kept)
        assert masked.rounds[0].bytes_up > 0


def test_a_study_with_summed_scores_is_refused(tmp_path: Path) -> None:
    read = three_silos(tmp_path)
    summed = plan_of(read, methods_of(read, ["masked"])[0], 0, None).privacy.secure_sum
    assert summed is not None
    assert summed.scores == "own"
    method = read.method["masked"]
    privacy = {"secure_sum": {"minimum": 3, "scores": "summed"}}
    plan = {**method.plan, "privacy": privacy}
    changed = read.model_copy(
        update={"method": read.method | {"masked": method.model_copy(update={"plan": plan})}}
    )
    with pytest.raises(StudyUnusable, match="sums the scores"):
        plan_of(changed, methods_of(changed, ["masked"])[0], 0, None)
