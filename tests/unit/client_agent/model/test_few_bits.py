"""Silos with a quantised base model: reports of `check`, and computations on dense weights."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from client_agent.alignment.fit_packs import aligned_pack, pivot_pack
from client_agent.alignment.pack import Pack
from client_agent.alignment.pivot_wait import PivotWait
from client_agent.daemon import prepare
from client_agent.errors import ModelTooLarge, SettingsUnusable
from client_agent.model.loading import base_model_slug, load_base_model, parameter_count
from client_agent.model.quantization import precision_of
from client_agent.preflight import findings
from client_agent.settings import read_settings
from client_agent.sketches.gradient import sketch_of
from client_agent.training.silo import dtype_of, open_silo, shared_dtype
from schemas.messages.alignment import Anchors
from schemas.messages.federations import AdapterPlan, AlignmentPlan, SignaturePlan
from tests.scene.agent_processes import EXAMPLES, MODELS
from tests.scene.agents import enrolled, limited_sleep
from tests.scene.coordinator import Served
from tests.scene.silo_config import config

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def bytes_in(text: str) -> list[float]:
    units = {"MiB": 2**20, "GiB": 2**30}
    return [float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) (MiB|GiB)", text)]


def test_quantised_and_dense_models_have_the_same_profile(tmp_path: Path) -> None:
    few, dense = (
        open_silo(read_settings(config(tmp_path, quantization=quantization)))
        for quantization in ("nf4", "none")
    )
    assert few.profile == dense.profile


def test_shared_model_too_large_for_gpu_uses_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    few = open_silo(read_settings(config(tmp_path, quantization="nf4")))
    few.base = replace(few.base, device=GPU)
    load = AutoModelForCausalLM.from_pretrained

    def with_a_small_gpu(*args: Any, device_map: dict[str, torch.device], **how: Any) -> Any:
        if device_map[""] == GPU:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return load(*args, device_map=device_map, **how)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", with_a_small_gpu)
    shared = few.model_named(few.base.slug)
    assert shared.device == CPU
    assert "no room for" in caplog.text
    with pytest.raises(ModelTooLarge, match=r"cuda has no room for it in bfloat16; set quantization to nf4"):
        load_base_model(str(MODELS["S"]), device=GPU, dtype=torch.bfloat16)


def test_silo_comparisons_are_computed_on_dense_weights(tmp_path: Path) -> None:
    few = open_silo(read_settings(config(tmp_path, quantization="nf4")))
    dense = open_silo(read_settings(config(tmp_path)))
    shared = few.model_named(few.base.slug)
    assert shared is not few.base
    assert few.model_named(few.base.slug) is shared
    assert dense.model_named(dense.base.slug) is dense.base
    plan = SignaturePlan(dim=64)
    default, first, second = (
        sketch_of(model, few.data.train, plan).vector for model in (few.base, shared, dense.base)
    )
    assert shared.model.dtype == torch.bfloat16
    assert cosine(first, second) > 0.99
    assert cosine(default, second) < 0.98


def cosine(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    return float(left @ right / (np.linalg.norm(left) * np.linalg.norm(right)))


def test_large_shared_model_is_quantised_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = open_silo(read_settings(config(tmp_path, quantization="nf4", pivot_model=str(MODELS["L"]))))
    count = parameter_count(str(MODELS["L"]))
    assert count == sum(p.numel() for p in load_base_model(str(MODELS["L"]), device=CPU).model.parameters())
    monkeypatch.setattr("client_agent.training.silo._LARGE", count)
    pivot = few.model_named(base_model_slug(str(MODELS["L"])))
    assert precision_of(pivot.model) == "nf4, bfloat16"
    assert few.model_named(few.base.slug) is not few.base, "it is small"
    monkeypatch.setattr("client_agent.training.silo._LARGE", 1)
    assert few.model_named(few.base.slug) is few.base


def test_shared_model_has_silo_dtype_and_own_template(tmp_path: Path) -> None:
    file = config(tmp_path, dtype="bfloat16", pivot_model=str(MODELS["L"]), chat_template="plain")
    silo = open_silo(read_settings(file))
    pivot = silo.model_named(base_model_slug(str(MODELS["L"])))
    assert pivot.model.dtype == torch.bfloat16
    assert pivot.tokenizer.chat_template == silo.base.tokenizer.chat_template
    assert [shared_dtype(dtype, "none") for dtype in (torch.float16, torch.float32)] == [
        torch.bfloat16,
        torch.float32,
    ]


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_packs_of_bfloat16_and_float32_models_agree() -> None:
    content = json.loads((EXAMPLES / "anchors.json").read_bytes())
    anchors, errors = Anchors.model_validate(content).anchors[:64], []
    for dtype in (torch.float32, torch.bfloat16):
        base, pivot = (load_base_model(str(MODELS[n]), device=CPU, dtype=dtype) for n in ("S", "S"))
        plan = AlignmentPlan(pivot=pivot.slug, anchors=64)
        adapter = AdapterPlan(rank=8, blocks=1, roles=("v", "down"))
        pivots_pack = pivot_pack(pivot, anchors, adapter, plan, "f")
        pack_errors = aligned_pack(base, pivot, pivots_pack, anchors, adapter, plan, "f").manifest.errors
        errors.append([e for error in pack_errors.values() for e in (error.a, error.b_token, error.b_task)])
    assert errors[1] == pytest.approx(errors[0], rel=0.03, abs=0.01)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_quantised_silo_makes_the_dense_silos_pack(
    tmp_path: Path, fresh_database: Callable[[str], str], serve: Callable[..., Served]
) -> None:
    served = serve(fresh_database("sqlite"), tick_seconds=0.05, retry_seconds=0.05)
    large, pivot = str(MODELS["L"]), str(MODELS["S"])
    file = config(tmp_path, model=large, pivot_model=pivot, quantization="nf4")
    silo = open_silo(read_settings(file))
    alignment = AlignmentPlan(pivot=base_model_slug(pivot), anchors=64, pivot_pack_by_any_client=True)
    federation_id = served.federation(
        strategy={"name": "fedmosaic"}, alignment=alignment.model_dump(), training={"max_length": 64}
    )
    content = json.loads((EXAMPLES / "anchors.json").read_bytes())
    served.admin.put(f"/v1/federations/{federation_id}/anchors", json=content)
    served.start_federation(federation_id)
    with ExitStack() as stack:
        participant = enrolled(served, federation_id, silo, tmp_path, stack)
        participant = replace(
            participant, trainer=replace(participant.trainer, pivot_wait=PivotWait(patience_seconds=0))
        )
        prepare(participant, limited_sleep(500))
        slugs = (silo.base.slug, alignment.pivot)
        stored = [participant.session.api.pack(federation_id, slug) for slug in slugs]
    pack, pivots_pack = (Pack.from_body(body.body) for body in stored if body is not None)
    anchors = Anchors.model_validate(content).anchors[:64]
    dense = [load_base_model(source, device=CPU, dtype=torch.bfloat16) for source in (large, pivot)]
    expected = aligned_pack(*dense, pivots_pack, anchors, AdapterPlan(), alignment, federation_id)
    for name, values in expected.tensors.items():
        np.testing.assert_allclose(pack.tensors[name], values, rtol=1e-4, atol=1e-4 * np.abs(values).max())


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_check_reports_precision_and_memory_of_a_step(tmp_path: Path, quantization: str) -> None:
    details = {
        precision: {
            finding.subject: finding.detail for finding in findings(config(tmp_path, quantization=precision))
        }
        for precision in ("none", quantization)
    }
    assert details[quantization]["device"].endswith(f"bfloat16, linear layers in {quantization}")
    assert details["none"]["device"].endswith("float32")
    assert details[quantization]["model"] == details["none"]["model"]
    few, step, recomputing = bytes_in(details[quantization]["memory"])
    assert few < bytes_in(details["none"]["memory"])[0] / 2
    assert recomputing < step


def test_dtype_follows_device_and_bits_by_default(tmp_path: Path) -> None:
    few, dense = (read_settings(config(tmp_path, quantization=bits)) for bits in ("int8", "none"))
    assert [dtype_of(few, CPU), dtype_of(dense, CPU)] == [torch.bfloat16, torch.float32]
    assert dtype_of(dense, GPU) == torch.bfloat16
    assert (
        dtype_of(read_settings(config(tmp_path, quantization="nf4", dtype="float32")), GPU) == torch.float32
    )


def test_unknown_number_of_bits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsUnusable, match="quantization"):
        read_settings(config(tmp_path, quantization="3bit"))


def test_quantization_is_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_AGENT_QUANTIZATION", "nf4")
    assert read_settings(config(tmp_path)).quantization == "nf4"
