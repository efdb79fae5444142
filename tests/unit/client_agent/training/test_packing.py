"""Packed rows of several texts: logits, loss and gradients equal those of separate rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from client_agent.adapters.inject import inject_lora
from client_agent.errors import SettingsUnusable
from client_agent.model.examples import Example, encode_all, encode_for
from client_agent.model.forward import answer_logits
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import Batch, collate, pad_id
from client_agent.settings import read_settings
from client_agent.training.loop import TrainingOptions, answer_loss, train
from client_agent.training.packing import packed, require_packable
from client_agent.training.silo import open_silo
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.silo_config import config

ADAPTER = AdapterPlan(kind="lora", rank=4, blocks=2)


def batches(base: BaseModel, examples: list[Example]) -> tuple[Batch, Batch]:
    texts = encode_all([*examples[:9], Example("k", "q")], base.tokenizer, 64)
    pad = pad_id(base.tokenizer)
    return packed(texts, pad=pad), collate(texts, pad=pad)


def test_texts_fill_the_rows_that_the_longest_needs(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    together, apart = batches(tiny(), examples)
    assert together.ids.shape[1] == apart.ids.shape[1]
    assert len(together.ids) < len(apart.ids)
    assert (together.tokens, together.answers) == (apart.tokens, apart.answers)
    assert together.positions is not None
    starts = (together.positions == 0) & together.attention.bool()
    assert int(starts.sum()) == len(apart.ids)


def by_token(base: BaseModel, batch: Batch) -> torch.Tensor:
    """Return the logits of all answer tokens, in an order that does not depend on rows."""
    logits, targets = answer_logits(base, batch)
    losses = logits.logsumexp(-1) - logits.gather(1, targets[:, None])[:, 0]
    return logits[losses.argsort()]


def test_logits_do_not_depend_on_packing(each_architecture: BaseModel, examples: list[Example]) -> None:
    require_packable(each_architecture)
    together, apart = batches(each_architecture, examples)
    packed, expected = (by_token(each_architecture, batch) for batch in (together, apart))
    torch.testing.assert_close(packed, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_type", ["gemma2", "gemma3_text", "mistral"])
def test_sliding_window_stays_in_its_text(
    tiny: Callable[..., BaseModel], examples: list[Example], model_type: str
) -> None:
    base = tiny(model_type, sliding_window=4)
    require_packable(base)
    together, apart = batches(base, examples)
    torch.testing.assert_close(by_token(base, together), by_token(base, apart), rtol=1e-4, atol=1e-5)


def test_loss_and_gradients_do_not_depend_on_packing(
    tiny: Callable[..., BaseModel], examples: list[Example]
) -> None:
    base = tiny()
    losses, gradients = [], []
    for batch in batches(base, examples):
        with inject_lora(base, ADAPTER) as adapter:
            loss = answer_loss(base, batch) / batch.answers
            torch.autograd.backward(loss)
            losses.append(loss.item())
            gradients.append({n: cast(Any, p.grad).clone() for n, p in adapter.named_parameters().items()})
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_training_does_not_depend_on_packing(tiny: Callable[..., BaseModel], examples: list[Example]) -> None:
    base, outcomes = tiny(), []
    plan = TrainingPlan(steps=3, batch_size=8, learning_rate=0.01, accumulation=2, max_length=64)
    for packing in (False, True):
        with inject_lora(base, ADAPTER) as adapter:
            options = TrainingOptions(packing=packing)
            texts = encode_for(base, examples, plan.max_length)
            outcome = train(
                base,
                adapter,
                texts,
                plan,
                learning_rate=0.01,
                seed=0,
                round_number=1,
                total_rounds=1,
                options=options,
            )
            outcomes.append(outcome)
    assert outcomes[0].losses == pytest.approx(outcomes[1].losses, rel=1e-4)
    assert outcomes[0].tokens == outcomes[1].tokens


def test_model_that_mixes_packed_texts_is_refused(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    decoder = cast(Any, base.model).model
    forward = decoder.forward

    def without_positions(*args: Any, position_ids: Any = None, **how: Any) -> Any:
        return forward(*args, **how)

    decoder.forward = without_positions
    with pytest.raises(SettingsUnusable, match="llama does not keep the texts of a row apart"):
        require_packable(base)


def test_packing_is_a_setting_of_the_silo(tmp_path: Path) -> None:
    file = config(tmp_path, optimizer="adamw8bit")
    file.write_text(file.read_text() + "packing = true\n")
    assert open_silo(read_settings(file)).options == TrainingOptions(optimizer="adamw8bit", packing=True)
