"""The data and models of the examples: small models without knowledge of the tasks, disjoint data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from client_agent.model.loading import load_base_model
from client_agent.training.data import load_data
from client_agent.training.evaluate import evaluate
from examples.demo_tiny.silos import EXAMPLES, FOUNDERS, LATECOMER, MODELS, SILOS

SILO_DATA = {silo.name: load_data(EXAMPLES / "silos" / silo.name, validation_share=0) for silo in SILOS}


def test_the_two_models_are_small_together() -> None:
    files = [path for model in MODELS.values() for path in model.iterdir()]
    assert sum(path.stat().st_size for path in files) <= 8 * 2**20


def test_examples_of_silos_are_disjoint() -> None:
    prompts = [e.prompt for data in SILO_DATA.values() for e in (*data.train, *data.test)]
    assert len(prompts) == len(set(prompts))


def test_silos_have_12_examples_and_96_tests() -> None:
    assert {len(data.train) for data in SILO_DATA.values()} == {12}
    assert all(len(data.test) >= 96 for data in SILO_DATA.values())


def test_the_anchors_are_public_texts_of_no_silo() -> None:
    anchors = json.loads((EXAMPLES / "anchors.json").read_bytes())["anchors"]
    assert len(anchors) >= 1000
    prompts = {e.prompt for data in SILO_DATA.values() for e in (*data.train, *data.test)}
    assert not prompts & {anchor["prompt"] for anchor in anchors}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", sorted(MODELS))
def test_models_know_only_the_public_texts(architecture: str) -> None:
    base = load_base_model(str(MODELS[architecture]), device=torch.device("cpu"))
    for silo in SILOS:
        if silo.architecture == architecture:
            metrics = evaluate(base, SILO_DATA[silo.name].test, max_length=64)
            assert metrics.teacher_forced_match <= 0.02, silo.name
    pretraining = json.loads((Path(MODELS[architecture]) / "pretraining.json").read_text())
    assert min(pretraining["exact_match"].values()) >= 0.9


def test_the_cast_has_six_founders_and_a_latecomer() -> None:
    assert [(s.architecture, s.task) for s in FOUNDERS] == [
        ("S", "cipher"),
        ("S", "cipher"),
        ("L", "cipher"),
        ("L", "cipher"),
        ("S", "label"),
        ("S", "label"),
    ]
    assert (LATECOMER.architecture, LATECOMER.task) == ("L", "cipher")
