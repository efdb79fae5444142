"""Paths of the modules of a transformer by architecture; no other file contains module names.

To add an architecture, add an entry to `ARCHITECTURES` under the `model_type` of its config.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from client_agent.errors import UnknownArchitecture
from schemas.messages.federations import Role


@dataclass(frozen=True, slots=True)
class Fusion:
    """The output rows of roles that share a linear layer: `groups` times a part of each role, in order.

    `widths` are the outputs of each role's part. Both are functions of the model's config.
    """

    roles: tuple[Role, ...]
    widths: Callable[[Any], tuple[int, ...]]
    groups: Callable[[Any], int] = lambda _: 1

    def rows(self, config: object, role: Role) -> Tensor:
        """Return the role's output rows of the layer: (d_out of the role,) int64, in order."""
        widths, position = self.widths(config), self.roles.index(role)
        start, count = sum(widths[:position]), self.groups(config)
        outputs = torch.arange(count * sum(widths)).view(count, -1)  # (groups, widths of all roles)
        return outputs[:, start : start + widths[position]].reshape(-1)


@dataclass(frozen=True, slots=True)
class Architecture:
    """Paths of the parts of one kind of causal language model.

    `closed_form` is true if the closed form of the gradient sketch holds: the final norm is an RMSNorm that
    multiplies by its weight, logits are the head's outputs, and the output of `down` is added to the residual
    stream unchanged.
    """

    decoder: str  # embeddings to final norm, without the head
    layers: str
    norm: str
    head: str
    roles: Mapping[Role, str]  # below a layer
    same_input: tuple[tuple[Role, ...], ...]  # roles with the same input activation
    closed_form: bool
    fused: Mapping[str, Fusion] = field(default_factory=dict)  # by path below a layer

    def path(self, layer: int, role: Role) -> str:
        return f"{self.layers}.{layer}.{self.roles[role]}"

    def linear(self, model: nn.Module, layer: int, role: Role) -> nn.Module:
        return model.get_submodule(self.path(layer, role))

    def is_fused(self, role: Role) -> bool:
        """Whether the role shares its linear layer with another role."""
        return self.roles[role] in self.fused

    def rows(self, model: nn.Module, role: Role) -> Tensor:
        """Return the role's output rows of its linear layer: (d_out of the role,) int64, in order."""
        if self.is_fused(role):
            return self.fused[self.roles[role]].rows(cast(Any, model).config, role)
        return torch.arange(linear_shape(self.linear(model, 0, role))[0])

    def shape(self, model: nn.Module, role: Role) -> tuple[int, int]:
        """Return (d_out, d_in) of a role; d_out counts its own rows of a fused layer."""
        return len(self.rows(model, role)), linear_shape(self.linear(model, 0, role))[1]

    def logits(self, model: nn.Module, hidden: Tensor) -> Tensor:
        """Apply the head: (..., d) -> (..., V), with the softcap of Gemma 2 and 3."""
        logits = cast(Tensor, model.get_submodule(self.head)(hidden))
        softcap = getattr(cast(Any, model).config, "final_logit_softcapping", None)
        return logits if softcap is None else torch.tanh(logits / softcap) * softcap


def linear_shape(linear: nn.Module) -> tuple[int, int]:
    """Return (d_out, d_in) of a linear layer, transposed (`Conv1D`) or not."""
    if isinstance(linear, Conv1D):
        return int(linear.nf), int(linear.nx)
    return int(cast(int, linear.out_features)), int(cast(int, linear.in_features))


def place_rows(factors: Sequence[Tensor], rows: Sequence[Tensor], d_out: int) -> Tensor:
    """Join the B (d_out of the role, r) of a layer's n roles: (d_out, n r).

    Role i is in columns i r to (i + 1) r and in the output rows `rows[i]`; other entries are 0.
    Differentiable.
    """
    joined = block_diagonal(factors)
    where = torch.cat(list(rows))
    return joined.new_zeros(d_out, joined.shape[1]).index_copy(0, where, joined)


def block_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    return cast(Callable[..., Tensor], torch.block_diag)(*blocks)


def _head_width(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _grouped_heads(config: Any) -> tuple[int, int, int]:
    width = _head_width(config)
    shared = config.num_key_value_heads * width
    return config.num_attention_heads * width, shared, shared


_GATED_MLP = Architecture(
    decoder="model",
    layers="model.layers",
    norm="model.norm",
    head="lm_head",
    roles=MappingProxyType(
        {
            "q": "self_attn.q_proj",
            "k": "self_attn.k_proj",
            "v": "self_attn.v_proj",
            "o": "self_attn.o_proj",
            "gate": "mlp.gate_proj",
            "up": "mlp.up_proj",
            "down": "mlp.down_proj",
        }
    ),
    same_input=(("q", "k", "v"), ("o",), ("gate", "up"), ("down",)),
    closed_form=True,
)

_GEMMA = replace(_GATED_MLP, closed_form=False)  # norms multiply by 1 + weight

_PHI3 = Architecture(
    decoder="model",
    layers="model.layers",
    norm="model.norm",
    head="lm_head",
    roles=MappingProxyType(
        {
            "q": "self_attn.qkv_proj",
            "k": "self_attn.qkv_proj",
            "v": "self_attn.qkv_proj",
            "o": "self_attn.o_proj",
            "gate": "mlp.gate_up_proj",
            "up": "mlp.gate_up_proj",
            "down": "mlp.down_proj",
        }
    ),
    same_input=_GATED_MLP.same_input,
    closed_form=True,
    fused=MappingProxyType(
        {
            "self_attn.qkv_proj": Fusion(("q", "k", "v"), _grouped_heads),
            "mlp.gate_up_proj": Fusion(("gate", "up"), lambda config: (config.intermediate_size,) * 2),
        }
    ),
)

_GPT_NEOX = Architecture(
    decoder="gpt_neox",
    layers="gpt_neox.layers",
    norm="gpt_neox.final_layer_norm",
    head="lm_head",
    roles=MappingProxyType(
        {
            "q": "attention.query_key_value",
            "k": "attention.query_key_value",
            "v": "attention.query_key_value",
            "o": "attention.dense",
            "up": "mlp.dense_h_to_4h",
            "down": "mlp.dense_4h_to_h",
        }
    ),
    same_input=(("q", "k", "v"), ("o",), ("up",), ("down",)),
    closed_form=False,
    fused=MappingProxyType(
        {
            "attention.query_key_value": Fusion(  # q, k, v of one head, then of the next
                ("q", "k", "v"),
                lambda config: (config.hidden_size // config.num_attention_heads,) * 3,
                lambda config: int(config.num_attention_heads),
            )
        }
    ),
)

_GPT2 = Architecture(
    decoder="transformer",
    layers="transformer.h",
    norm="transformer.ln_f",
    head="lm_head",
    roles=MappingProxyType(
        {
            "q": "attn.c_attn",
            "k": "attn.c_attn",
            "v": "attn.c_attn",
            "o": "attn.c_proj",
            "up": "mlp.c_fc",
            "down": "mlp.c_proj",
        }
    ),
    same_input=_GPT_NEOX.same_input,
    closed_form=False,
    fused=MappingProxyType(
        {"attn.c_attn": Fusion(("q", "k", "v"), lambda config: (config.hidden_size,) * 3)}
    ),
)

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama": _GATED_MLP,
        "mistral": _GATED_MLP,
        "qwen2": _GATED_MLP,
        "qwen3": _GATED_MLP,
        "gemma": _GEMMA,
        "gemma2": _GEMMA,
        "gemma3_text": _GEMMA,
        "phi3": _PHI3,
        "gpt_neox": _GPT_NEOX,
        "gpt2": _GPT2,
    }
)


def architecture_of(model_type: str) -> Architecture:
    """Return the architecture of a `model_type`.

    Raises:
        UnknownArchitecture: `ARCHITECTURES` has no entry for it.
    """
    try:
        return ARCHITECTURES[model_type]
    except KeyError:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise UnknownArchitecture(
            f"model_type {model_type!r} is not supported; supported are {supported}. Use one of these, or "
            f"add entry {model_type!r} to ARCHITECTURES in client_agent/model/architectures.py: the paths "
            "of decoder, layers, norm and head, the linear layer of each role q, k, v, o, gate, up, down, "
            "and the output rows of each role where roles share a layer."
        ) from None
