"""Tokenizers that cut text differently: positions are matched by characters."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from client_agent.alignment import module_selection
from client_agent.alignment.anchor_responses import random_targets, with_targets
from client_agent.alignment.fit_packs import aligned_pack, pivot_pack
from client_agent.alignment.token_matching import Responses, alignment_set, matched
from client_agent.errors import AlignmentImpossible
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.model.tokens import NO_TARGET
from schemas.messages.alignment import Anchor, PackErrors
from schemas.messages.federations import AdapterPlan, AlignmentPlan
from tests.scene.tiny_models import SPECIAL, as_fast_tokenizer, random_model

EXAMPLES = Path(__file__).parents[4] / "examples"
ADAPTER = AdapterPlan(rank=4, blocks=2, roles=("v", "down"))
WORDS = ("river", "stone", "cloud", "amber", "the", "then", "there", "naïve", "œuvre", "été")
RARE = "日本"  # no tokenizer has seen it: one on bytes cuts each of its characters into three
TEXTS = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS[:3]]
ANCHORS = [
    Anchor(id=f"a{i}", prompt=f"say {a} {b}{end}", answer=f"{b} {a}")
    for i, (a, b, end) in enumerate(
        (a, b, end) for a in WORDS for b in (RARE, *WORDS[:3]) for end in ("=", " ", "")
    )
][:96]
KINDS = ("characters", "words", "bytes")


def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """`characters`; `words`: pieces learnt by BPE; `bytes`: those of bytes, a space with the word after."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    if kind == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if kind == "words" else None
        tokenizer.decoder = decoders.Fuse()
    alphabet = sorted({letter for text in TEXTS for letter in text + "=say" + RARE})
    if kind == "bytes":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=len(SPECIAL) + len(alphabet) + (0 if kind == "characters" else 60),
        special_tokens=SPECIAL,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", SPECIAL.index("<bos>"))]
    )
    return as_fast_tokenizer(tokenizer)


@pytest.fixture(scope="module")
def model_of_kind(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], BaseModel]:
    """Return a random model with a tokenizer of some kind."""
    models: dict[str, BaseModel] = {}

    def load(kind: str) -> BaseModel:
        if kind not in models:
            folder, tokenizer = tmp_path_factory.mktemp("models") / kind, tokenizer_of(kind)
            random_model("llama", tokenizer, KINDS.index(kind)).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            models[kind] = load_base_model(str(folder), device=torch.device("cpu"))
        return models[kind]

    return load


def whole(anchor: Anchor) -> str:
    return anchor.prompt + anchor.answer


def targets_of(anchors: list[Anchor]) -> dict[int, str]:
    """Return the responses that an alignment needs."""
    return dict(enumerate(random_targets(anchors, 0)))


def test_fixture_tokenizers_cut_text_differently() -> None:
    text = "say there été="
    cut = {kind: tokenizer_of(kind).tokenize(text) for kind in KINDS}
    assert len(cut["characters"]) == len(text)
    assert "there" in cut["words"]
    assert "Ġthere" in cut["bytes"]
    assert len(tokenizer_of("bytes").tokenize(RARE)) == 6


@pytest.mark.parametrize("pivot_kind", KINDS)
@pytest.mark.parametrize("base_kind", KINDS)
def test_matched_positions_have_read_the_same_characters(
    model_of_kind: Callable[[str], BaseModel], base_kind: str, pivot_kind: str
) -> None:
    pivot, base = model_of_kind(pivot_kind), model_of_kind(base_kind)
    plan = AlignmentPlan(pivot=pivot.slug, anchors=96)
    pack = pivot_pack(pivot, ANCHORS, ADAPTER, plan, "fed")
    responses = Responses(pivot, pack, ANCHORS, ADAPTER.rank, torch.device("cpu"))
    read_of_pivot, predicting_of_pivot = rows_of(pivot)
    texts = with_targets(base, ANCHORS, targets_of(ANCHORS))
    for kind, places, rows, expected in (
        ("z", [(i, t) for i, x in enumerate(texts) for t in x.read], responses.z_row, read_of_pivot),
        (
            "g",
            [(i, t) for i, x in enumerate(texts) for t in x.predicting],
            responses.g_row,
            predicting_of_pivot,
        ),
    ):
        positions, matches = matched(texts, places, rows)
        assert len(positions) > len(ANCHORS), kind
        assert len(set(matches)) == len(matches), f"{kind}: one of the pivot's rows was given away twice"
        for (i, t), row in zip(positions, matches, strict=True):
            anchor, has_read = expected[row]
            assert texts[i].anchor == anchor
            assert base.tokenizer.decode(texts[i].encoded.ids[1 : t + 1]).replace(" ", "") == has_read
        assert pack.tensors[f"b0.v.{kind}"].shape[0] == len(expected)


def rows_of(pivot: BaseModel) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Return the pivot's text read at each row of z and of g: (anchor, characters without spaces)."""
    read: list[tuple[int, str]] = []
    predicting: list[tuple[int, str]] = []
    for text in with_targets(pivot, ANCHORS, targets_of(ANCHORS)):
        texts_read = {
            t: (text.anchor, pivot.tokenizer.decode(text.encoded.ids[1 : t + 1]).replace(" ", ""))
            for t in text.read
        }
        read += texts_read.values()
        predicting += [texts_read[t] for t in text.predicting]
    return read, predicting


@pytest.mark.parametrize("kind", KINDS)
def test_target_token_starts_at_the_next_character(
    model_of_kind: Callable[[str], BaseModel], kind: str
) -> None:
    tokenizer = model_of_kind(kind).tokenizer
    checked = 0
    for text in with_targets(model_of_kind(kind), ANCHORS, targets_of(ANCHORS)):
        anchor = ANCHORS[text.anchor]
        target_text = anchor.prompt + random_targets(ANCHORS, 0)[text.anchor]
        for t, target in enumerate(text.targets):
            if target == NO_TARGET:
                continue
            first = max(text.encoded.spans[t + 1][0], len(anchor.prompt))
            letter = target_text[first]
            decoded = tokenizer.decode([target])
            assert letter in decoded or "\ufffd" in decoded, (
                target_text,
                first,
                decoded,
            )  # or a byte of it
            checked += letter in decoded
            if kind == "characters":
                assert decoded == letter
    assert checked > 200


@pytest.mark.parametrize("kind", KINDS)
def test_predicted_positions_do_not_depend_on_the_target(
    model_of_kind: Callable[[str], BaseModel], kind: str
) -> None:
    """Else the pivot's rows would depend on what was drawn, and others could not find theirs."""
    base, anchor = model_of_kind(kind), Anchor(id="a", prompt="say ", answer="the river")
    asked_at = [
        with_targets(base, [anchor], {0: target})[0].predicting
        for target in ("x y  zabc", "aaaaaaaaa", " abcdefgh")
    ]
    assert asked_at[0] == asked_at[1] == asked_at[2]
    assert asked_at[0]


def test_blanks_are_never_drawn() -> None:
    assert not any(letter.isspace() for target in random_targets(ANCHORS, 0) for letter in target)
    with pytest.raises(AlignmentImpossible, match="blank"):
        random_targets([Anchor(id="a", prompt="b", answer=" ")], 0)


def test_first_bytes_of_a_character_match_no_position(model_of_kind: Callable[[str], BaseModel]) -> None:
    pivot, base = model_of_kind("characters"), model_of_kind("bytes")
    plan = AlignmentPlan(pivot=pivot.slug, anchors=96)
    pack = pivot_pack(pivot, ANCHORS, ADAPTER, plan, "fed")
    responses = Responses(pivot, pack, ANCHORS, ADAPTER.rank, torch.device("cpu"))
    texts = [
        text
        for text in with_targets(base, ANCHORS, targets_of(ANCHORS))
        if RARE in whole(ANCHORS[text.anchor])
    ]
    assert texts
    positions, _ = matched(texts, [(i, t) for i, x in enumerate(texts) for t in x.read], responses.z_row)
    for i, t in positions:
        assert "\ufffd" not in base.tokenizer.decode(texts[i].encoded.ids[1 : t + 1])


@pytest.mark.long
@pytest.mark.parametrize(("base_kind", "pivot_kind"), [("tiny-q", "tiny-s"), ("tiny-s", "tiny-q")])
def test_differently_tokenised_models_align_better_than_shuffled_text(
    monkeypatch: pytest.MonkeyPatch, base_kind: str, pivot_kind: str
) -> None:
    monkeypatch.setattr(module_selection, "FITTING_TASKS", 1)
    monkeypatch.setattr(module_selection, "HELD_OUT_TASKS", 1)
    records = json.loads((EXAMPLES / "anchors.json").read_text())["anchors"][:512]
    anchors = [Anchor.model_validate(record) for record in records]
    base, pivot = (
        load_base_model(str(EXAMPLES / "models" / name), device=torch.device("cpu"))
        for name in (base_kind, pivot_kind)
    )
    adapter, plan = AdapterPlan(roles=("v", "down")), AlignmentPlan(pivot=pivot.slug, anchors=512)
    pack = pivot_pack(pivot, anchors, adapter, plan, "fed")
    shuffled = dict(pack.tensors)
    for kind in "zg":
        order = np.random.default_rng(0).permutation(len(pack.tensors[f"b0.v.{kind}"]))
        shuffled |= {name: t[order] for name, t in pack.tensors.items() if name.endswith(f".{kind}")}
    digest = alignment_set(pivot.slug, anchors, shuffled, adapter.rank)
    manifest = pack.manifest.model_copy(update={"alignment_set": digest})
    elsewhere = dataclasses.replace(pack, tensors=shuffled, manifest=manifest)

    def errors(pivots_pack: object) -> dict[str, PackErrors]:
        fitted = aligned_pack(base, pivot, pivots_pack, anchors, adapter, plan, "fed")  # type: ignore[arg-type]
        return dict(fitted.manifest.errors)

    right, wrong = errors(pack), errors(elsewhere)
    print({name: (e.a, wrong[name].a, e.b_token, wrong[name].b_token) for name, e in right.items()})
    for name, error in right.items():
        assert error.a < 0.75 * wrong[name].a, name
    for name in ("b3.down", "b2.down"):
        assert right[name].b_token < 0.9 * wrong[name].b_token, name
