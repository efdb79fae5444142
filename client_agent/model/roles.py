"""Say where the parts of a transformer are, by architecture. The only place that knows module names.

To add an architecture, add one entry to `ARCHITECTURES` under the `model_type` of its config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import nn

from client_agent.errors import UnknownArchitecture
from schemas.messages.federations import Role


@dataclass(frozen=True, slots=True)
class Architecture:
    """Paths of the parts of one kind of causal language model.

    The signature's closed form relies on two further facts: the final norm is an RMSNorm, and the output
    of `down` is added to the residual stream without anything in between.
    """

    decoder: str  # embeddings to final norm, without the head
    layers: str
    norm: str
    head: str
    roles: Mapping[Role, str]  # below a layer
    same_input: tuple[tuple[Role, ...], ...]  # roles that read one and the same activation

    def path(self, layer: int, role: Role) -> str:
        """Name the linear layer of (layer, role) as `Module.get_submodule` expects it."""
        return f"{self.layers}.{layer}.{self.roles[role]}"

    def linear(self, model: nn.Module, layer: int, role: Role) -> nn.Module:
        """Find the linear layer of (layer, role)."""
        return model.get_submodule(self.path(layer, role))


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
)

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {"llama": _GATED_MLP, "mistral": _GATED_MLP, "qwen2": _GATED_MLP, "qwen3": _GATED_MLP}
)


def architecture_of(model_type: str) -> Architecture:
    """Find the entry of a `model_type`.

    Raises:
        UnknownArchitecture: there is none.
    """
    try:
        return ARCHITECTURES[model_type]
    except KeyError:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnknownArchitecture(
            f"model_type {model_type!r} is not supported; known are {known}. Use one of them, or add an "
            f"entry {model_type!r} to ARCHITECTURES in client_agent/model/roles.py: the paths of decoder, "
            "layers, norm and head, and the linear layer of each role q, k, v, o, gate, up, down."
        ) from None
