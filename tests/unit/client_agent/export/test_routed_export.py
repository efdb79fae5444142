"""Exports of experts weighted by token: as X-LoRA for public peft, and as one ordinary LoRA."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from client_agent.adapters.base import require_bare
from client_agent.adapters.frames import random_frames
from client_agent.adapters.peft_export import checkpoint_in_place, write_checkpoint
from client_agent.adapters.peft_folder import CONFIG, TENSORS
from client_agent.errors import AdapterUnreadable, ExportInexact, ExportUnsupported
from client_agent.experts.routed_experts import RoutedExperts, inject_experts
from client_agent.export.artefact import held_out_loss
from client_agent.export.folder import MANIFEST
from client_agent.export.job import export_adapter
from client_agent.export.serving import routed_commands
from client_agent.export.xlora import XLoraFiles, export_routed, xlora_in_place
from client_agent.model.loading import BaseModel
from client_agent.training.silo import Silo
from schemas.messages.federations import AdapterPlan
from schemas.strategies.fed_vemoe import FedVemoeOptions
from tests.scene.agent_processes import MODELS
from tests.scene.models import logits_of
from tests.scene.tensors import random_tensors
from tests.unit.client_agent.export.artefacts import FACTS, SCORING, Source, artefact, write_no_card

SOFT = FedVemoeOptions(top_m=3, gamma=0.7)
EXPERTS = (0, 1, 2, 5)
IDS = torch.tensor([[1, 5, 9, 14, 7, 22, 30, 6]])


def trained_bank(base: BaseModel, routing: FedVemoeOptions, *, size: float = 0.2) -> RoutedExperts:
    """Wrap a model in a bank whose experts and router are not those of a birth."""
    plan = AdapterPlan(kind="lora", rank=3, scale=0.5, roles=("q", "v", "down"), layers=2)
    adapter = inject_experts(base, plan, {}, EXPERTS, routing, seed=0)
    rng = np.random.default_rng(0)
    noise = {n: (size * rng.standard_normal(s)).astype(np.float32) for n, s in adapter.layout.items()}
    rows = {
        n: np.asarray(0.5 * rng.standard_normal(v.shape), np.float32)
        for n, v in adapter.private_state().items()
        if n.startswith("router.")
    }
    shares = {f"routing.x{k}": np.array(r, np.float32) for k, r in {1: 0.5, 2: 0.2, 5: 0.3}.items()}
    chosen = np.array([5, 1][: routing.specialists], np.float32)
    adapter.load(noise)
    adapter.load_private({**rows, **shares, "routing.chosen": chosen})
    return adapter


@pytest.mark.parametrize("bias", [True, False])
def test_experts_with_p_are_exported_except_with_q(
    tiny: Callable[..., BaseModel], tmp_path: Path, bias: bool
) -> None:
    base, plan = tiny(), AdapterPlan(rank=4, blocks=2, bias=bias)
    with inject_experts(base, plan, random_frames(base, plan, 0), EXPERTS, SOFT, seed=0) as adapter:
        adapter.load(random_tensors(adapter.layout, scale=0.2))
        rows = {n: v + np.float32(0.3) for n, v in adapter.private_state().items() if n.startswith("router.")}
        adapter.load_private(rows | {"router.x1.u": -rows["router.x1.u"]})
        expected = logits_of(base.model, IDS)
        if bias:
            with pytest.raises(ExportUnsupported, match=r"adapter\.bias"):
                XLoraFiles.of(adapter)
            return
        files = XLoraFiles.of(adapter)
    files.write(tmp_path, base, "model")
    with xlora_in_place(base, tmp_path, files.adapters(tmp_path)) as model:
        torch.testing.assert_close(logits_of(model, IDS), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "phi3", "gemma2"])
def test_public_peft_computes_the_routed_logits(
    tiny: Callable[..., BaseModel], tmp_path: Path, architecture: str
) -> None:
    base = tiny(architecture)
    bare = logits_of(base.model, IDS)
    with trained_bank(base, SOFT) as adapter:
        expected = logits_of(base.model, IDS)
        files = XLoraFiles.of(adapter)
        weights = adapter.bank.specialist_weights
        assert weights is not None
        assert weights.std(dim=1).min() > 0.01  # tokens differ
    files.write(tmp_path, base, "model")
    with xlora_in_place(base, tmp_path, files.adapters(tmp_path)) as model:
        torch.testing.assert_close(logits_of(model, IDS), expected, atol=1e-5, rtol=1e-5)
    require_bare(base)
    torch.testing.assert_close(logits_of(base.model, IDS), bare, atol=0, rtol=0)
    assert (expected - bare).abs().max() > 0.05


def test_exported_class_is_an_ordinary_lora(tiny: Callable[..., BaseModel], tmp_path: Path) -> None:
    base = tiny()
    expected = {}
    with trained_bank(base, SOFT) as adapter:
        XLoraFiles.of(adapter).write(tmp_path, base, "model")
        for name, specialists in (("x0", ()), ("x5", (5,)), ("x1", (1,))):
            adapter.choose(specialists)
            expected[name] = logits_of(base.model, IDS)
    for name, values in expected.items():
        with checkpoint_in_place(base, tmp_path / name):
            torch.testing.assert_close(logits_of(base.model, IDS), values, atol=1e-5, rtol=1e-4)
    config = json.loads((tmp_path / CONFIG).read_text())
    assert config["adapters"] == {"0": "x5", "1": "x1"}


ROUTED = Source(lambda base: trained_bank(base, SOFT, size=0.05))
HARD = Source(lambda base: trained_bank(base, FedVemoeOptions(), size=0.05))


def test_routed_export_is_reloaded_and_scored(silo: Silo, tmp_path: Path) -> None:
    out = tmp_path / "routed"
    for force in (False, True):  # the second replaces the first
        losses = export_routed(silo, ROUTED, FACTS, "model", out, write_no_card, force=force).written.losses
    with ROUTED.attach(silo):
        assert losses.adapter == pytest.approx(held_out_loss(silo.base, silo, SCORING, 64))
    assert losses.export == pytest.approx(losses.adapter, abs=1e-5)
    assert losses.adapter != pytest.approx(losses.bare, abs=1e-3)
    assert {file.name for file in out.iterdir()} == {CONFIG, TENSORS, MANIFEST, "x0", "x1", "x5"}


@pytest.mark.slow
def test_model_card_command_loads_a_moved_folder(
    silo: Silo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    export_routed(silo, ROUTED, FACTS, str(MODELS["S"]), tmp_path / "out", write_no_card)
    (tmp_path / "out").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    command = routed_commands(replace(artefact(tmp_path), base_name=str(MODELS["S"])))[1]
    loaded: dict[str, object] = {}
    code = command.removeprefix('python -c "').removesuffix('"').replace("=64", "=2")  # tokens
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peft about transformers
        exec(code, loaded)  # as a reader of the card runs it
    bare = logits_of(silo.base.model, IDS)
    with ROUTED.attach(silo):
        expected = logits_of(silo.base.model, IDS)
    public = logits_of(loaded["m"], IDS).float()  # of weights in the float16 of the files
    assert (public - expected).abs().max() < 0.05 < (public - bare).abs().max()
    assert capsys.readouterr().out


def test_flat_export_is_the_mixture_of_the_prior(silo: Silo, tmp_path: Path) -> None:
    exported = export_adapter(
        silo, ROUTED, FACTS, artefact(tmp_path), tmp_path / "flat", write_no_card, flat=True
    )
    losses = exported.written.losses
    with ROUTED.attach(silo) as (adapter, _):
        assert isinstance(adapter, RoutedExperts)
        assert losses.routed == pytest.approx(held_out_loss(silo.base, silo, SCORING, 64))
        adapter.choose(())
        adapter.bank.select((5, 1), torch.tensor([0.375, 0.625]))
        assert losses.adapter == pytest.approx(held_out_loss(silo.base, silo, SCORING, 64), abs=1e-6)
    assert losses.export == pytest.approx(losses.adapter, abs=1e-5)
    assert losses.routed != pytest.approx(losses.adapter, abs=1e-4)


def test_single_specialist_exports_as_ordinary_lora(silo: Silo, tmp_path: Path) -> None:
    losses = export_adapter(
        silo, HARD, FACTS, artefact(tmp_path), tmp_path / "hard", write_no_card
    ).written.losses
    assert losses.export == pytest.approx(losses.adapter, abs=1e-5)
    assert losses.routed is None
    with pytest.raises(ExportUnsupported, match="leave it out"):
        export_adapter(silo, HARD, FACTS, artefact(tmp_path), tmp_path / "x", write_no_card, flat=True)
    with pytest.raises(ExportUnsupported, match="ordinary LoRA"):
        export_routed(silo, HARD, FACTS, "model", tmp_path / "x", write_no_card)
    with pytest.raises(ExportUnsupported, match="--routed"):
        export_adapter(silo, ROUTED, FACTS, artefact(tmp_path), tmp_path / "x", write_no_card)
    assert not (tmp_path / "x").exists()


def test_inexact_export_is_not_written(silo: Silo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = XLoraFiles.of
    monkeypatch.setattr(XLoraFiles, "of", lambda adapter: replace(of(adapter), offsets=np.float32([9, -9])))
    with pytest.raises(ExportInexact, match="public peft"):
        export_routed(silo, ROUTED, FACTS, "model", tmp_path / "out", write_no_card)
    monkeypatch.setattr(silo.base.model, "is_loaded_in_4bit", True, raising=False)
    with pytest.raises(ExportUnsupported, match="nf4"):
        export_routed(silo, ROUTED, FACTS, "model", tmp_path / "out", write_no_card)
    assert not any(tmp_path.iterdir())


def test_architecture_that_public_peft_renames_is_refused(
    tiny: Callable[..., BaseModel], silo: Silo, tmp_path: Path
) -> None:
    gpt2 = replace(silo, base=tiny("gpt2"))
    with pytest.raises(ExportUnsupported, match="gpt2, whose layers are in transformer"):
        export_routed(gpt2, ROUTED, FACTS, "model", tmp_path / "out", write_no_card)


def test_routed_folder_without_its_classes_is_unreadable(
    tiny: Callable[..., BaseModel], tmp_path: Path
) -> None:
    base = tiny()
    with trained_bank(base, SOFT) as adapter:
        files = XLoraFiles.of(adapter)
        write_checkpoint(tmp_path / "alone", adapter.as_lora(), base, "model")
    files.write(tmp_path, base, "model")
    missing = {"0": str(tmp_path / "x5"), "1": str(tmp_path / "nowhere")}
    with pytest.raises(AdapterUnreadable), xlora_in_place(base, tmp_path, missing):
        pass
    require_bare(base)
