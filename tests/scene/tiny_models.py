"""Tiny random models of every supported architecture, and their tokenizers."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

ARCHITECTURES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "gpt_neox",
    "gpt2",  # with fused layers
)

CHARACTERS = string.ascii_lowercase + string.digits + " =<>/|_\n"

GPT2_SAYS = {"n_inner": 48, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}

SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]


def character_tokenizer(pairs: bool = False) -> PreTrainedTokenizerFast:
    """Make a tokenizer of one token per character, or with `pairs` per two letters."""
    pieces = list(CHARACTERS)
    if pairs:
        pieces += [a + b for a in string.ascii_lowercase for b in string.ascii_lowercase]
    ids = {token: i for i, token in enumerate([*SPECIAL, *pieces])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    pattern = r"[a-z]{2}|[\s\S]" if pairs else r"[\s\S]"
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", ids["<bos>"])]
    )
    return as_fast_tokenizer(tokenizer)


def as_fast_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Name the special tokens of a tokenizer, as models' files do."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


def random_model(model_type: str, tokenizer: PreTrainedTokenizerFast, seed: int, **changes: Any) -> Any:
    """Make a random model of four layers, `hidden_size` 32 unless it is changed."""
    width = changes.pop("hidden_size", 32)
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": width // 4,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.1,
        **(GPT2_SAYS if model_type == "gpt2" else {}),
        **changes,
    }
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
    with torch.no_grad():  # norms and biases of trained models are not all ones and zeros
        for name, parameter in model.named_parameters():
            if "norm" in name or ".ln_" in name or name.endswith("bias"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def save_model(
    folder: Path, model_type: str = "llama", *, pairs: bool = False, seed: int = 0, **changes: Any
) -> str:
    """Save a random model with its tokenizer; return the folder."""
    tokenizer = character_tokenizer(pairs)
    random_model(model_type, tokenizer, seed, **changes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
