"""First bytes of next tokens: outputs that models with different tokenizers share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from client_agent.model.forward import answer_logits
from client_agent.model.loading import BaseModel
from client_agent.model.next_bytes import NextBytes, first_bytes
from client_agent.model.tokens import collate, pad_id
from schemas.messages.alignment import Anchor
from schemas.wire.outputs import END, VALUES, Outputs

ANCHORS = [
    Anchor(id="a", prompt="rev abc=", answer="cba"),
    Anchor(id="b", prompt="rev wxyz=", answer="zyxw"),
]
ROWS = 4 + 5


def test_rows_are_answer_characters_and_sum_to_one(
    tiny: Callable[..., BaseModel],
) -> None:
    base = tiny()
    public = NextBytes(base, ANCHORS, 64)
    assert public.rows == ROWS
    logs, rows = public.log_shares(public.texts)
    assert rows.tolist() == [*range(ROWS)]
    batch = collate([text.encoded for text in public.texts], pad=pad_id(base.tokenizer))
    logits, _ = answer_logits(base, batch)
    tokens = torch.softmax(logits, -1)
    ids = base.tokenizer.get_vocab()
    torch.testing.assert_close(logs.exp()[:, ord("q")], tokens[:, ids["q"]])
    torch.testing.assert_close(logs.exp()[:, END], tokens[:, ids["<eos>"]])
    without_text = sum(tokens[:, ids[name]] for name in ("<pad>", "<bos>", "<unk>"))
    torch.testing.assert_close(logs.exp().sum(1) + without_text, torch.ones(ROWS))


def test_tokenizer_of_pairs_has_rows_at_token_ends(tiny: Callable[..., BaseModel]) -> None:
    public = NextBytes(tiny(pairs=True), ANCHORS, 64)
    outputs = public.outputs()
    assert outputs.bytes.shape == (ROWS, 8)
    # "cba": cb|a|end; "zyxw": zy|xw|end
    assert np.flatnonzero(outputs.shares.any(axis=1)).tolist() == [0, 2, 3, 4, 6, 8]
    logs, rows = public.log_shares(public.texts)
    assert rows.tolist() == [0, 2, 3, 4, 6, 8]
    # Single letters and pairs that begin with them count together.
    assert logs.exp().sum(1).max() <= 1 + 1e-4


def test_stored_outputs_are_the_largest_shares_per_row(tiny: Callable[..., BaseModel]) -> None:
    public = NextBytes(tiny(), ANCHORS * 20, 64)  # more texts than a batch
    logs, rows = public.log_shares(public.texts[:2])
    dense = np.zeros((2 * 20 * ROWS // 2, VALUES), np.float32)
    dense[rows.numpy()] = logs.detach().exp().numpy()
    np.testing.assert_allclose(public.outputs().dense()[:ROWS], Outputs.of(dense).dense()[:ROWS], atol=2e-3)


def byte_level(tokens: list[str]) -> PreTrainedTokenizerFast:
    ids = {token: number for number, token in enumerate(["<eos>", "<pad>", *tokens])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")


def test_first_bytes_of_byte_level_tokens_are_found() -> None:
    tokenizer = byte_level(["a", "\u0120the", "\u00c3\u00a9", "\u00c3", "\u00a9", "\u010a"])
    first = first_bytes(tokenizer, 10).tolist()
    assert first == [END, VALUES, ord("a"), ord(" "), 0xC3, 0xC3, 0xA9, ord("\n"), VALUES, VALUES]


def test_first_bytes_of_sentence_pieces_are_found() -> None:
    ids = {token: number for number, token in enumerate(["</s>", "\u2581the", "the", "<0x0A>", "\u00e9"])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="</s>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    assert first_bytes(fast, 5).tolist() == [END, ord(" "), ord("t"), ord("\n"), 0xC3]


def test_character_of_several_tokens_has_one_row(tiny: Callable[..., BaseModel]) -> None:
    """Both tokens of an accented letter end at one place: only the last of them has read it."""
    base = replace(tiny(), tokenizer=byte_level(["a", "=", "\u00c3", "\u00a9"]))
    (text,) = NextBytes(base, [Anchor(id="x", prompt="a=", answer="a\u00e9a")], 64).texts
    assert text.rows == (0, 1, -1, 2, 3)
