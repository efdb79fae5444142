"""A silo whose base model is quantised: what `check` says of it, and what is computed on dense weights."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from client_agent.check import findings
from client_agent.errors import SettingsUnusable
from client_agent.settings import read_settings
from client_agent.signature import sketch_of
from client_agent.silo import dtype_of, open_silo
from schemas.messages.federations import SignaturePlan
from tests.client_agent.test_daemon import config

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def bytes_in(text: str) -> list[float]:
    units = {"MiB": 2**20, "GiB": 2**30}
    return [float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) (MiB|GiB)", text)]


def test_a_quantised_model_and_the_dense_one_are_one_base_model_to_the_coordinator(tmp_path: Path) -> None:
    few, dense = (
        open_silo(read_settings(config(tmp_path, quantization=quantization)))
        for quantization in ("nf4", "none")
    )
    assert few.profile == dense.profile


def test_what_silos_compare_is_computed_on_dense_weights(tmp_path: Path) -> None:
    few = open_silo(read_settings(config(tmp_path, quantization="nf4")))
    dense = open_silo(read_settings(config(tmp_path)))
    shared = few.model_named(few.base.slug)
    assert shared is not few.base
    assert few.model_named(few.base.slug) is shared
    assert dense.model_named(dense.base.slug) is dense.base
    plan = SignaturePlan(dim=64)
    own, ours, theirs = (
        sketch_of(model, few.data.train, plan).vector for model in (few.base, shared, dense.base)
    )
    np.testing.assert_array_equal(ours, theirs)
    assert not np.allclose(own, theirs, rtol=0.1)


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_check_says_how_the_model_is_held_and_what_a_step_needs(tmp_path: Path, quantization: str) -> None:
    found = {
        held: {finding.what: finding.found for finding in findings(config(tmp_path, quantization=held))}
        for held in ("none", quantization)
    }
    assert found[quantization]["device"].endswith(f"bfloat16, linear layers in {quantization}")
    assert found["none"]["device"].endswith("float32")
    assert found[quantization]["model"] == found["none"]["model"]
    few, step, recomputing = bytes_in(found[quantization]["memory"])
    assert few < bytes_in(found["none"]["memory"])[0] / 2
    assert recomputing < step


def test_the_type_follows_device_and_bits_unless_it_is_set(tmp_path: Path) -> None:
    few, dense = (read_settings(config(tmp_path, quantization=bits)) for bits in ("int8", "none"))
    assert [dtype_of(few, CPU), dtype_of(dense, CPU)] == [torch.bfloat16, torch.float32]
    assert dtype_of(dense, GPU) == torch.bfloat16
    assert (
        dtype_of(read_settings(config(tmp_path, quantization="nf4", dtype="float32")), GPU) == torch.float32
    )


def test_another_number_of_bits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsUnusable, match="quantization"):
        read_settings(config(tmp_path, quantization="3bit"))


def test_the_environment_sets_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_AGENT_QUANTIZATION", "nf4")
    assert read_settings(config(tmp_path)).quantization == "nf4"
