"""Hidden states below the first adapter are computed once per text, with equal results."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from client_agent.adapters.inject import inject_lora
from client_agent.adapters.lora import LoraAdapter
from client_agent.errors import Stopped
from client_agent.model.examples import Example, encode_for
from client_agent.model.forward import hidden_states
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import collate, pad_id
from client_agent.storage.prefix_store import PrefixStore
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.evaluate import mean_loss
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.local_training import train_examples
from tests.scene.tensors import filled_tensors

LAST_TWO = AdapterPlan(kind="lora", rank=4, layers=2)
PLAN = TrainingPlan(steps=6, batch_size=4, max_length=64, learning_rate=0.02)
ROOM = 2**24


@contextmanager
def calls_of_the_lowest_layer(base: BaseModel) -> Iterator[list[int]]:
    """Count the texts that the lowest layer reads; a hook would switch the prefix off."""
    linear = cast(Any, base.parts.linear(base.model, 0, next(iter(base.parts.roles[0]))))
    texts: list[int] = []
    original = linear.forward

    def counted(x: torch.Tensor) -> torch.Tensor:
        texts.append(len(x))
        return cast(torch.Tensor, original(x))

    linear.forward = counted
    try:
        yield texts
    finally:
        linear.forward = original


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt2", "phi3"])
def test_hidden_states_equal_those_of_all_layers(
    tiny: Callable[..., BaseModel], examples: list[Example], tmp_path: Path, model_type: str
) -> None:
    base = tiny(model_type)
    batch = collate(encode_for(base, examples[:6], 64), pad=pad_id(base.tokenizer))
    with inject_lora(base, LAST_TWO) as adapter, torch.no_grad():
        adapter.load(filled_tensors(adapter.layout, 0.05))
        whole = hidden_states(base, batch)
    base.prefix.store = PrefixStore(tmp_path, ROOM)
    with inject_lora(base, LAST_TWO) as adapter, torch.no_grad():
        adapter.load(filled_tensors(adapter.layout, 0.05))
        assert base.prefix.first == 2
        computed, stored = hidden_states(base, batch), hidden_states(base, batch)
        with calls_of_the_lowest_layer(base) as texts:
            hidden_states(base, batch)
    read = batch.attention.bool()
    torch.testing.assert_close(computed[read], whole[read], rtol=1e-5, atol=1e-5)
    assert torch.equal(computed[read], stored[read])
    assert texts == []
    (file, *further) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert len(further) == 5
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_and_scores_equal_those_of_all_layers(
    tiny: Callable[..., BaseModel], examples: list[Example], tmp_path: Path, checkpointing: bool
) -> None:
    results = []
    plan = PLAN.model_copy(update={"gradient_checkpointing": checkpointing})
    for store in (None, PrefixStore(tmp_path, ROOM)):
        base = tiny()
        base.prefix.store = store
        with inject_lora(base, LAST_TWO) as adapter:
            losses = train_examples(base, adapter, examples[:12], plan).losses
            results.append([*losses, mean_loss(base, encode_for(base, examples[12:], 64))])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)


@pytest.mark.parametrize("stored", ["nothing", "half", "all"])
def test_stopped_training_resumes_to_the_same_bits(
    tiny: Callable[..., BaseModel], examples: list[Example], tmp_path: Path, stored: str
) -> None:
    def trained(store: Path, file: Path, stop: Callable[[], bool]) -> dict[str, bytes]:
        base = tiny()
        base.prefix.store = PrefixStore(store, ROOM)
        with inject_lora(base, LAST_TWO) as adapter:
            outcome = train_examples(
                base,
                adapter,
                examples,
                PLAN,
                stop=stop,
                checkpoint=TrainingCheckpoint(file, 3600.0),
            )
            if len(outcome.losses) < PLAN.steps:
                raise Stopped
            return {name: values.tobytes() for name, values in adapter.state().items()}

    whole = trained(tmp_path / "whole", tmp_path / "a", lambda: False)
    calls = count()
    with pytest.raises(Stopped):
        trained(tmp_path / "stopped", tmp_path / "b", lambda: next(calls) >= 3)
    files = [path for path in (tmp_path / "stopped").rglob("*") if path.is_file()]
    share = {"nothing": len(files), "half": len(files) // 2, "all": 0}[stored]
    for file in files[:share]:
        file.unlink()
    assert trained(tmp_path / "stopped", tmp_path / "b", lambda: False) == whole


def test_adapter_below_the_prefix_is_computed(
    tiny: Callable[..., BaseModel], examples: list[Example], tmp_path: Path
) -> None:
    base = tiny()
    base.prefix.store = PrefixStore(tmp_path, ROOM)
    batch = collate(encode_for(base, examples[:2], 64), pad=pad_id(base.tokenizer))
    with inject_lora(base, LAST_TWO), torch.no_grad():
        bare = hidden_states(base, batch)
    with LoraAdapter(base, AdapterPlan(kind="lora", rank=4), seed=0) as adapter, torch.no_grad():
        assert base.prefix.first == 2  # as the last plan left it
        adapter.load(filled_tensors(adapter.layout, 0.05))
        assert not torch.allclose(hidden_states(base, batch), bare, atol=1e-3)


@pytest.mark.parametrize(
    ("model_type", "changes", "layers", "reason"),
    [
        ("gpt2", {"attn_pdrop": 0.1}, 2, "dropout"),
        ("llama", {"attention_dropout": 0.1}, 2, "dropout"),
        ("llama", {}, 3, ""),  # a quarter of the layers
        ("llama", {}, None, ""),
    ],
)
def test_prefix_is_unused_where_it_does_not_help(
    tiny: Callable[..., BaseModel],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    model_type: str,
    changes: dict[str, Any],
    layers: int | None,
    reason: str,
) -> None:
    base = tiny(model_type, **changes)
    base.prefix.store = PrefixStore(tmp_path, ROOM)
    with caplog.at_level(logging.WARNING), inject_lora(base, AdapterPlan(kind="lora", layers=layers)):
        assert base.prefix.first == 0
    assert reason in caplog.text
    assert bool(reason) == bool(caplog.text)


def test_damaged_prefix_file_is_computed_again(
    tiny: Callable[..., BaseModel], examples: list[Example], tmp_path: Path
) -> None:
    base = tiny()
    base.prefix.store = PrefixStore(tmp_path, ROOM)
    batch = collate(encode_for(base, examples[:3], 64), pad=pad_id(base.tokenizer))
    with inject_lora(base, LAST_TWO), torch.no_grad():
        expected = hidden_states(base, batch)
        first, second, third = (path for path in tmp_path.rglob("*") if path.is_file())
        first.write_bytes(first.read_bytes()[:-7])
        second.write_bytes(bytes(len(second.read_bytes())))
        third.write_bytes(b"")
        with calls_of_the_lowest_layer(base) as texts:
            assert torch.equal(hidden_states(base, batch), expected)
    assert len(texts) == 3


def test_prefix_store_is_bounded_and_drops_old_prefixes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = PrefixStore(tmp_path, 250)
    store.use("old")
    store.put("a", bytes(96))
    store.use("new")
    for name in "bcd":
        store.put(name, bytes(96))
    assert store.get("a", 96) is None
    assert [store.get(name, 96) is not None for name in "bcd"] == [True, True, False]
    assert caplog.text.count("limit") == 1
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 250


def test_unfinished_prefix_files_are_deleted_after_an_hour(tmp_path: Path) -> None:
    space = tmp_path / "space"
    space.mkdir()
    old, new = space / ".new-old", space / ".new-new"
    for file in (old, new):
        file.write_bytes(bytes(100))
    an_hour_ago = time.time() - 3601
    os.utime(old, (an_hour_ago, an_hour_ago))
    PrefixStore(tmp_path, ROOM).use("space")
    assert not old.exists()
    assert new.exists()


def test_unwritable_prefix_store_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    store = PrefixStore(tmp_path / "file", ROOM)
    store.use("space")
    store.put("a", b"1")
    store.put("b", b"2")
    assert store.get("a", 1) is None
    assert caplog.text.count("cannot be written") == 1
