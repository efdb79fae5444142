"""Llama-shaped models of real sizes with random weights, made where they are needed: nothing is downloaded.

A model is built layer by layer on its device, and each layer is quantised before the next is drawn, so that 7
billion parameters in 4 bits need no file and never more memory than 4 bits and one layer.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel
from client_agent.model.measurement import measured
from client_agent.model.quantization import keep_differentiable
from client_agent.settings import Quantization

_SPREAD = 0.02
_SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
_LETTERS = string.ascii_lowercase + string.digits + " ="


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of a model, and of the batches to train it on."""

    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = False
    batch: int = 8
    length: int = 128


SIZES = {
    "tiny": Size(64, 192, 4, 4, 2, 256, batch=4, length=64),
    "small": Size(256, 768, 8, 8, 4, 2048),
    "1b": Size(2048, 8192, 16, 32, 8, 128256, tied=True, batch=4, length=512),
    "7b": Size(4096, 11008, 32, 32, 32, 32000, batch=4, length=512),
}

LARGE = ("1b", "7b")
"""Sizes that need a GPU, and whose activations are recomputed in training."""


def built(size: Size, *, device: torch.device, dtype: torch.dtype, quantization: Quantization) -> BaseModel:
    """Build a frozen model as `load_base_model` would load it, from the current random numbers."""
    config = _config(size)
    config.num_hidden_layers = 0
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        for index in range(size.layers):
            layer = LlamaDecoderLayer(config, index).to(dtype)
            for path, linear in list(layer.named_modules()):
                if isinstance(linear, nn.Linear):
                    nn.init.normal_(linear.weight, std=_SPREAD)
                    layer.set_submodule(path, _allocated(linear, dtype, quantization))
            model.model.layers.append(layer)
    model.config.num_hidden_layers = model.model.config.num_hidden_layers = size.layers
    model.is_loaded_in_4bit = quantization == "nf4"  # peft asks these
    model.is_loaded_in_8bit = quantization == "int8"
    keep_differentiable(model)
    model.requires_grad_(False)
    model.eval()
    return BaseModel(
        model=model,
        tokenizer=_tokenizer(),
        slug=f"llama-{size.width}x{size.layers}-000000000000",
        architecture="llama",
        hidden_size=size.width,
        parts=measured(model),
        device=device,
    )


def saved(size: Size, folder: Path, *, device: torch.device) -> str:
    """Write such a model, drawn on `device`, as bfloat16 shards with a tokenizer; return its folder."""
    with device:
        model = AutoModelForCausalLM.from_config(_config(size), dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="1GB")
    _tokenizer().save_pretrained(folder)
    return str(folder)


def full_batch(size: Size, *, seed: int = 0) -> list[Example]:
    """Return one batch of random text, every example exactly `size.length` tokens long, half of it answer."""
    generator = torch.Generator().manual_seed(seed)
    count = size.length - 2  # bos and eos
    texts = [
        "".join(_LETTERS[i] for i in torch.randint(len(_LETTERS), (count,), generator=generator).tolist())
        for _ in range(size.batch)
    ]
    return [Example(text[: count // 2], text[count // 2 :]) for text in texts]


def _config(size: Size) -> Any:
    return AutoConfig.for_model(
        "llama",
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        vocab_size=size.vocabulary,
        max_position_embeddings=4096,
        tie_word_embeddings=size.tied,
        initializer_range=_SPREAD,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )


def _allocated(linear: nn.Linear, compute: torch.dtype, quantization: Quantization) -> nn.Module:
    """Hold a dense layer's weights as asked, the way that transformers does when it loads them."""
    if quantization == "none":
        return linear
    import bitsandbytes

    bnb: Any = bitsandbytes
    weight = linear.weight.data
    shape = (linear.in_features, linear.out_features)
    if quantization == "nf4":
        four: Any = bnb.nn.Linear4bit(
            *shape, bias=False, compute_dtype=compute, quant_type="nf4", device="meta"
        )
        four.weight = bnb.nn.Params4bit(weight, requires_grad=False, quant_type="nf4", module=four).to(
            weight.device
        )
        return cast(nn.Module, four)
    eight: Any = bnb.nn.Linear8bitLt(*shape, bias=False, has_fp16_weights=False, threshold=6.0, device="meta")
    # It quantises on its way from the CPU to the device, and only then.
    eight.weight = bnb.nn.Int8Params(weight.cpu(), requires_grad=False).to(weight.device)
    return cast(nn.Module, eight)


def _tokenizer() -> PreTrainedTokenizerFast:
    """One token per character."""
    ids = {token: i for i, token in enumerate((*_SPECIAL, *_LETTERS))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", ids["<bos>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
