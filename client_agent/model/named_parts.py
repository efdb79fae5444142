"""Find the parts of a causal language model by the names and shapes of its modules; no weight is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from client_agent.errors import UnknownArchitecture
from client_agent.model.architectures import FrozenParts, RoleLinear, linear_shape, listed
from client_agent.model.role_names import (
    LayerRoles,
    NamedLinear,
    is_cross_attention,
    is_routed,
    placed_roles,
)
from schemas.messages.federations import ALL_ROLES, Role

_USE = "use a decoder-only transformer (docs/reference/architectures.md)"


@dataclass(frozen=True, slots=True)
class NamedParts:
    """The parts of a model by names and shapes, before measurements; fused layers have no rows yet."""

    decoder: str
    layers: str
    head: str
    placed: tuple[Sequence[LayerRoles], ...]


def named_parts(model: PreTrainedModel) -> NamedParts:
    """Find the parts of a model by name and shape; the weights may be absent (device meta).

    Raises:
        UnknownArchitecture: it has an encoder, no list of layers, or no linear layer of a known name.
    """
    kind = str(model.config.model_type)
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnknownArchitecture(f"{kind} has an encoder beside its decoder; {_USE}")
    head = cast(nn.Module | None, cast(Any, model).get_output_embeddings())
    if not isinstance(head, nn.Linear):
        raise UnknownArchitecture(f"{kind} has no linear layer from hidden states to logits; {_USE}")
    decoder, layers = _decoder(model, kind)
    paths = {id(module): path for path, module in model.named_modules()}
    placed = tuple(placed_roles(_linears(layer), head.in_features) for layer in layers)
    cross = next(
        (path for layer in layers for path, _ in layer.named_modules() if is_cross_attention(path)), None
    )
    if cross is not None:
        raise UnknownArchitecture(f"{kind} attends to an encoder ({cross}); {_USE}")
    if not any(placed) and getattr(model.config, "is_decoder", None) is False:
        raise UnknownArchitecture(f"{kind} is an encoder (is_decoder is false in its config.json); {_USE}")
    if not any(placed):
        names = sorted({linear.path for layer in layers for linear in _linears(layer)})
        raise UnknownArchitecture(
            f"{kind} has no linear layer of a known name such as q_proj or down_proj"
            f"{f', only {listed(names)}' if names else ''}; {_USE}"
        )
    for number, layer in enumerate(placed):
        _require_one_of_each(layer, kind, number)
    return NamedParts(paths[id(decoder)], paths[id(layers)], paths[id(head)], placed)


def require_named(config: PreTrainedConfig) -> None:
    """Check that a model of a config has the parts of a decoder; no weight is read.

    Raises:
        UnknownArchitecture: transformers cannot build a causal language model of it, or see `named_parts`.
    """
    try:
        # Shapes without memory.
        with torch.device("meta"):
            model = cast(Any, AutoModelForCausalLM).from_config(config)
    except Exception as error:  # models have no common error for a config that they cannot use
        raise UnknownArchitecture(
            f"transformers builds no causal language model of {config.model_type} ({error}); {_USE}"
        ) from error
    named_parts(cast(PreTrainedModel, model))


def _decoder(model: PreTrainedModel, kind: str) -> tuple[nn.Module, nn.ModuleList]:
    """Return the decoder and its list of layers: the largest of its lists of modules, or of a child's."""
    inner = [child for child in model.children() if isinstance(child, PreTrainedModel)]
    for decoder in (cast(Any, model).get_decoder(), model.base_model, *inner):
        if decoder is model:
            continue
        nested = [decoder, *decoder.children()]
        lists = [
            child for module in nested for child in module.children() if isinstance(child, nn.ModuleList)
        ]
        transformers = [layer_list for layer_list in lists if any(_linears(layer) for layer in layer_list)]
        if transformers:
            # A model may have small further lists, such as those of a predictor of several tokens.
            return decoder, max(transformers, key=lambda layer_list: sum(1 for _ in layer_list.modules()))
    raise UnknownArchitecture(f"{kind} has no list of transformer layers; {_USE}")


def _linears(layer: nn.Module) -> list[NamedLinear]:
    return [
        NamedLinear(path, linear_shape(module))
        for path, module in layer.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and not is_routed(path)
    ]


def _require_one_of_each(placed: Sequence[LayerRoles], kind: str, layer: int) -> None:
    paths: dict[Role, str] = {}
    for linear_of_roles in placed:
        for role in linear_of_roles.roles:
            if role in paths:
                raise UnknownArchitecture(
                    f"layer {layer} of {kind} has two linear layers of role {role} ({paths[role]}, "
                    f"{linear_of_roles.linear.path}); {_USE}"
                )
            paths[role] = linear_of_roles.linear.path


def role_linears(
    parts: NamedParts, rows: Mapping[tuple[str, int], Mapping[Role, Tensor]]
) -> tuple[Mapping[Role, RoleLinear], ...]:
    """Return the linear layers of all roles by layer.

    `rows` are the output rows of the roles of each fused layer, by `LayerRoles.key`. A fused layer without
    rows serves no role.
    """
    return tuple(
        dict(sorted(_layer_linears(parts, number, rows), key=lambda pair: ALL_ROLES.index(pair[0])))
        for number in range(len(parts.placed))
    )


def _layer_linears(
    parts: NamedParts, number: int, rows: Mapping[tuple[str, int], Mapping[Role, Tensor]]
) -> Iterator[tuple[Role, RoleLinear]]:
    readers: dict[str, list[Role]] = {}
    served: list[tuple[Role, LayerRoles, Tensor | None]] = []
    for placed in parts.placed[number]:
        rows_of_roles = {placed.roles[0]: None} if len(placed.roles) == 1 else rows.get(placed.key, {})
        served += [(role, placed, rows_of_roles[role]) for role in rows_of_roles]
        readers.setdefault(placed.activation, []).extend(rows_of_roles)
    for role, placed, own_rows in served:
        d_out, d_in = placed.linear.shape
        shape = (d_out if own_rows is None else len(own_rows), d_in)
        reads = tuple(sorted(readers[placed.activation], key=ALL_ROLES.index))
        yield role, RoleLinear(f"{parts.layers}.{number}.{placed.linear.path}", shape, own_rows, reads)


def frozen_parts(
    model: nn.Module, parts: NamedParts, roles: Sequence[Mapping[Role, RoleLinear]]
) -> FrozenParts:
    """Find the parts of layers that no adapter changes: routed experts, and linear layers without a role."""
    layers = [model.get_submodule(f"{parts.layers}.{number}") for number in range(len(roles))]
    experts = [number for number, layer in enumerate(layers) if _has_experts(layer)]
    expert_roles = {role for number in experts for role in roles[number]}
    adapted = {placed.path for layer_roles in roles for placed in layer_roles.values()}
    untrained: dict[str, int] = {}
    for number, layer in enumerate(layers):
        for linear in _linears(layer):
            if f"{parts.layers}.{number}.{linear.path}" not in adapted:
                untrained[linear.path] = untrained.get(linear.path, 0) + 1
    return FrozenParts(
        layers=len(roles),
        expert_layers=len(experts),
        beside_experts=tuple(role for role in ALL_ROLES if role in expert_roles),
        linears=dict(sorted(untrained.items())),
    )


def _has_experts(layer: nn.Module) -> bool:
    return any(is_routed(path) for path, _ in layer.named_modules())
