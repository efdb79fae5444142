"""The first byte of the next token along public texts, which models of different tokenizers can compare.

Two tokenizers are compared where both end a token. The probability of a byte there is that of all tokens that
begin with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as nnf
from transformers import PreTrainedTokenizerFast

from client_agent.errors import TokenizerUnfit
from client_agent.model.forward import answer_logits
from client_agent.model.loading import BaseModel
from client_agent.model.stop_tokens import stop_ids
from client_agent.model.tokens import TokenizedText, collate, encode, pad_id
from schemas.messages.alignment import Anchor
from schemas.wire.outputs import END, VALUES, Outputs

_NONE = VALUES
"""The index of tokens without text that do not end an answer, whose probability is dropped."""

_BATCH = 8  # logits of 300 answer tokens and 150,000 of a vocabulary are 1.4 GB
_LEAST = 1e-9
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_INCOMPLETE = "\ufffd"


@dataclass(frozen=True, slots=True)
class PublicText:
    """One text: its tokens, and the row of each answer token; -1 = none, or not the end of a character."""

    encoded: TokenizedText
    rows: tuple[int, ...]


class NextBytes:
    """The public texts of a federation in the tokens of one base model."""

    def __init__(self, base: BaseModel, anchors: Sequence[Anchor], max_length: int) -> None:
        self._base = base
        self._first = first_bytes(base.tokenizer, base.vocabulary)  # (V,)
        self.texts: list[PublicText] = []
        self.rows = 0
        for anchor in anchors:
            self.texts.append(_text(base.tokenizer, anchor, self.rows, max_length))
            self.rows += len(anchor.answer) + 1

    def log_shares(self, texts: Sequence[PublicText]) -> tuple[Tensor, Tensor]:
        """Compute log p (m, VALUES) float32 at the m places of texts that have a row, and these rows (m,)."""
        base = self._base
        batch = collate([text.encoded for text in texts], pad=pad_id(base.tokenizer)).to(base.device)
        with torch.autocast(base.device.type, dtype=torch.bfloat16, enabled=base.device.type == "cuda"):
            logits, _ = answer_logits(base, batch)  # (tokens, V)
        rows = torch.tensor([row for text in texts for row in text.rows])
        has_row = rows >= 0
        shares = nnf.softmax(logits.float()[has_row.to(base.device)], dim=-1)  # (m, V)
        first = self._first[: shares.shape[1]].to(base.device)
        # The last column collects tokens without a byte, and is dropped.
        by_byte = shares.new_zeros(len(shares), VALUES + 1).index_add(1, first, shares)
        # A byte that no token begins with has share 0, whose logarithm would be infinite.
        return torch.log(by_byte[:, :VALUES] + _LEAST), rows[has_row]

    @torch.no_grad()
    def outputs(self) -> Outputs:
        """Return the outputs of the model with the adapter in place on all texts."""
        shares = np.zeros((self.rows, VALUES), np.float32)
        for start in range(0, len(self.texts), _BATCH):
            logs, rows = self.log_shares(self.texts[start : start + _BATCH])
            shares[rows.numpy()] = logs.exp().cpu().numpy()
        return Outputs.of(shares)


def first_bytes(tokenizer: PreTrainedTokenizerFast, vocabulary: int) -> Tensor:
    """Return the first byte of each token's text in UTF-8, (V,) int64; END for those that end an answer."""
    first = torch.full((vocabulary,), _NONE)
    special = set(cast(Any, tokenizer).all_special_ids)
    ends = {*stop_ids(tokenizer), tokenizer.eos_token_id}
    for token, number in tokenizer.get_vocab().items():
        if number >= vocabulary:
            continue
        if number in ends:
            first[number] = END
        elif number not in special and (content := _content(tokenizer, token)):
            first[number] = content[0]
    return first


def _content(tokenizer: PreTrainedTokenizerFast, token: str) -> bytes:
    """Return what a token appends to a text."""
    if match := _BYTE.fullmatch(token):
        return bytes([int(match[1], 16)])
    decoder = tokenizer.backend_tokenizer.decoder
    text = token
    if decoder is not None:
        # Not as the first token, of which some decoders strip a space.
        text = decoder.decode(["x", token]).removeprefix("x")
    if text.startswith(_INCOMPLETE):
        return _byte_of(token[0])
    return text.encode()


def _byte_of(symbol: str) -> bytes:
    """Return the byte of a symbol of byte-level BPE, which writes unprintable bytes as U+0100 and above."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    written = {chr(byte): byte for byte in printable}
    remaining = (byte for byte in range(256) if byte not in set(printable))
    written |= {chr(0x100 + place): byte for place, byte in enumerate(remaining)}
    return bytes([written[symbol]]) if symbol in written else b""


def _text(tokenizer: PreTrainedTokenizerFast, anchor: Anchor, first_row: int, max_length: int) -> PublicText:
    try:
        encoded = encode(tokenizer, anchor.prompt, anchor.answer, max_length=max_length)
    except TokenizerUnfit as error:
        raise TokenizerUnfit(f"anchor {anchor.id}: {error}") from error
    rows = []
    for place in range(1, len(encoded.ids)):
        if not encoded.answer[place]:
            continue
        read, end = encoded.spans[place - 1][1], encoded.spans[place][1]
        offset = read - len(anchor.prompt)
        # Bytes of one character end at the same place: only after the last of them it is read.
        rows.append(first_row + offset if 0 <= offset <= len(anchor.answer) and read != end else -1)
    return PublicText(encoded, tuple(rows))
