"""The linear layers of roles by their names in a transformer layer; no other file contains module names.

A name counts together with its shape: layers at the hidden states must have their width. Names that
several roles share are fused layers, whose rows `fused_rows` measures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schemas.messages.federations import Role

_ATTENTION = re.compile(
    r"(norm_attn_norm\.)?(self_attn|attn|attention|self_attention|multi_head_attention|self_att|mixer)"
    r"(\.attention|\.self_attention)?"
)
_FEED_FORWARD = re.compile(
    r"((mlp|mlp_block|ffn|feed_forward|mixer|block_sparse_moe|moe)(\.shared_(expert|experts|mlp))?|shared_mlp)?"
)
_CROSS = re.compile(r"(^|\.)(encoder_attn|cross_attn|crossattention|encoder_decoder_attention)(\.|$)")
_EXPERTS = re.compile(r"(^|\.)experts(\.|$)")

_ATTENTION_ROLES: Mapping[str, tuple[Role, ...]] = {
    "q_proj": ("q",),
    "q_b_proj": ("q",),
    "Wq": ("q",),
    "project_q": ("q",),
    "k_proj": ("k",),
    "Wk": ("k",),
    "project_k": ("k",),
    "v_proj": ("v",),
    "Wv": ("v",),
    "project_v": ("v",),
    "kv_proj": ("k", "v"),
    "kv_b_proj": ("k", "v"),
    "qkv_proj": ("q", "k", "v"),
    "query_key_value": ("q", "k", "v"),
    "c_attn": ("q", "k", "v"),
    "Wqkv": ("q", "k", "v"),
    "o_proj": ("o",),
    "out_proj": ("o",),
    "dense": ("o",),
    "c_proj": ("o",),
    "Wo": ("o",),
    "attention_out": ("o",),
}
_FEED_FORWARD_ROLES: Mapping[str, tuple[Role, ...]] = {
    "gate_proj": ("gate",),
    "w1": ("gate",),
    "up_proj": ("up",),
    "w3": ("up",),
    "fc1": ("up",),
    "fc_in": ("up",),
    "c_fc": ("up",),
    "dense_h_to_4h": ("up",),
    "gate_up_proj": ("gate", "up"),
    "input_linear": ("gate", "up"),
    "Wi": ("gate", "up"),
    "down_proj": ("down",),
    "w2": ("down",),
    "fc2": ("down",),
    "fc_out": ("down",),
    "c_proj": ("down",),
    "dense_4h_to_h": ("down",),
    "output_linear": ("down",),
    "Wo": ("down",),
}
_FROM_LATENT = frozenset({"q_b_proj", "kv_b_proj"})
"""Layers of multi-head latent attention, which read a compressed state instead of hidden states."""


@dataclass(frozen=True, slots=True)
class NamedLinear:
    """A linear layer below a transformer layer: its path there, and (d_out, d_in)."""

    path: str
    shape: tuple[int, int]

    @property
    def container(self) -> str:
        return self._name.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        return self._name.rpartition(".")[2]

    @property
    def _name(self) -> str:
        return self.path.removesuffix(".linear")  # some layers wrap a linear layer


@dataclass(frozen=True, slots=True)
class LayerRoles:
    """A linear layer and the roles that it serves, in no order if there are several."""

    linear: NamedLinear
    roles: tuple[Role, ...]

    @property
    def key(self) -> tuple[str, int]:
        """Return the path and the outputs, which layers with the same order of rows have in common."""
        return self.linear.path, self.linear.shape[0]

    @property
    def activation(self) -> str:
        """Return a name for what it reads, equal for layers that read the same."""
        if _outward(self.roles):
            return self.linear.path
        return self.linear.leaf if self.linear.leaf in _FROM_LATENT else self.linear.container


def placed_roles(linears: Iterable[NamedLinear], width: int) -> list[LayerRoles]:
    """Return the linear layers of one transformer layer that serve roles; `width` is that of hidden states.

    An output layer counts only beside an input layer of the same kind: a state-space mixer has an output
    layer of the same name.
    """
    named = [placed for linear in linears if (placed := _placed(linear, width)) is not None]
    containers = {placed.linear.container for placed in named if not _outward(placed.roles)}
    # A state-space mixer has an output layer of the same name, but no input layer of a role.
    return [placed for placed in named if placed.linear.container in containers]


def is_cross_attention(path: str) -> bool:
    """Whether a path is of an attention over the states of an encoder."""
    return _CROSS.search(path) is not None


def is_routed(path: str) -> bool:
    """Whether a path is of routed experts."""
    return _EXPERTS.search(path) is not None


def _placed(linear: NamedLinear, width: int) -> LayerRoles | None:
    d_out, d_in = linear.shape
    for container, names in ((_ATTENTION, _ATTENTION_ROLES), (_FEED_FORWARD, _FEED_FORWARD_ROLES)):
        roles = names.get(linear.leaf)
        if roles is None or not container.fullmatch(linear.container):
            continue
        # A name alone could be of another part, such as a vision tower.
        if (d_out if _outward(roles) else d_in) == width or linear.leaf in _FROM_LATENT:
            return LayerRoles(linear, roles)
    return None


def _outward(roles: tuple[Role, ...]) -> bool:
    """Whether a layer writes to the hidden states."""
    return roles in (("o",), ("down",))
