"""Anchor texts that a model generates, on real models and with the real command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from client_agent.alignment.anchor_responses import random_targets, with_targets
from client_agent.alignment.fit_packs import pivot_pack
from client_agent.alignment.generate_anchors import generate_anchors
from client_agent.errors import AlignmentImpossible, TokenizerUnfit
from client_agent.model.loading import BaseModel, load_base_model
from schemas.messages.alignment import Anchor, Anchors
from schemas.messages.federations import AdapterPlan, AlignmentPlan
from tests.scene.agent_commands import tessera
from tests.scene.agent_processes import MODELS

COUNT = 96


def written(base: BaseModel, seed: int = 0, max_tokens: int = 12) -> list[Anchor]:
    return generate_anchors(base, COUNT, seed=seed, max_tokens=max_tokens)


def text_of(anchor: Anchor) -> str:
    return anchor.prompt + anchor.answer


def test_texts_differ_and_follow_from_the_seed(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    texts = written(base)
    assert len({text_of(anchor) for anchor in texts}) == len(texts) == COUNT
    assert texts == written(base)
    assert texts != written(base, seed=1)
    assert all(4 <= len(text_of(anchor)) <= 12 for anchor in texts)  # a token is a character


def test_generated_texts_suit_alignment_of_all_architectures(each_architecture: BaseModel) -> None:
    texts = written(each_architecture)
    targets = dict(enumerate(random_targets(texts, seed=0)))
    assert all(text.predicting for text in with_targets(each_architecture, texts, targets))
    plan = AlignmentPlan(pivot=each_architecture.slug, anchors=COUNT)
    pack = pivot_pack(each_architecture, texts, AdapterPlan(rank=4, blocks=2), plan, "fed")
    assert pack.manifest.selected


def test_tokens_are_drawn_with_the_models_probabilities(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    first, second = (base.tokenizer.convert_tokens_to_ids(letter) for letter in "ab")
    opening = torch.tensor([[base.tokenizer.bos_token_id]])
    state = base.model.get_submodule(base.parts.decoder)(input_ids=opening).last_hidden_state[0, -1]
    with torch.no_grad():
        head = base.model.get_parameter("lm_head.weight")
        head.copy_(torch.outer(torch.full((len(head),), -100.0), state / state.square().sum()))
        for token, chance in ((first, 0.8), (second, 0.2)):
            head[token] = state / state.square().sum() * torch.tensor(chance).log()
    texts = generate_anchors(base, 400, seed=0, max_tokens=12)
    share = sum(text_of(anchor).startswith("a") for anchor in texts) / len(texts)
    assert share == pytest.approx(0.8, abs=0.08)


def test_model_without_bos_starts_after_eos(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    base.tokenizer.bos_token = None
    assert len(written(base)) == COUNT
    base.tokenizer.eos_token = None
    with pytest.raises(TokenizerUnfit, match="neither bos nor eos"):
        written(base)


@pytest.mark.slow
def test_model_that_generates_no_text_is_refused(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    opening = torch.tensor([[base.tokenizer.bos_token_id]])
    state = base.model.get_submodule(base.parts.decoder)(input_ids=opening).last_hidden_state[0, -1]
    with torch.no_grad():
        base.model.get_parameter("lm_head.weight").zero_()[base.tokenizer.eos_token_id] = 100 * state
    with pytest.raises(AlignmentImpossible, match="of which 0 are different and long enough"):
        written(base)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-s", "tiny-q"])
def test_command_writes_anchors_that_a_coordinator_accepts(name: str, tmp_path: Path) -> None:
    out = tmp_path / "anchors.json"
    command = (
        "write-anchors",
        MODELS["S"].with_name(name),
        "--out",
        out,
        "--count",
        64,
        "--seed",
        3,
        "--max-tokens",
        8,
    )
    done = tessera(*command)
    assert done.exit_code == 0, done.output
    anchors = Anchors.model_validate_json(out.read_bytes()).anchors
    base = load_base_model(str(MODELS["S"].with_name(name)), device=torch.device("cpu"))
    assert anchors == generate_anchors(base, 64, seed=3, max_tokens=8)
    assert base.slug in done.stdout
    assert f"next: the operator runs tessera anchors put FEDERATION {out}" in done.stdout
    again = tessera(*command)
    assert again.exit_code == 1
    assert "exists already; remove it" in again.output
    assert "folder" not in again.output


def test_missing_model_or_folder_is_an_error(tmp_path: Path) -> None:
    for model, out, expected in (
        (tmp_path / "none", tmp_path / "anchors.json", "none"),
        (MODELS["S"], tmp_path / "none" / "anchors.json", "there is no folder"),
    ):
        failed = tessera("write-anchors", model, "--out", out)
        assert failed.exit_code == 1, failed.output
        assert expected in failed.output
        assert "Traceback" not in failed.output
