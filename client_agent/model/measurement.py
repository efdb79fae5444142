"""Measure facts of a loaded model that names do not contain, and refuse a model that breaks an assumption.

Two short texts are enough, which differ in their last token: earlier hidden states must not differ, the
outputs of the head must be the model's logits, and every adapted layer must read each token once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from client_agent.errors import UnknownArchitecture
from client_agent.model.architectures import Architecture, linear_shape
from client_agent.model.fused_rows import measured_rows, reader_of
from client_agent.model.named_parts import NamedParts, frozen_parts, named_parts, role_linears
from schemas.messages.federations import Role

_POSITIONS = 6
_FIRST_TOKEN = 5
_MOST_IN_FLOAT32, _MOST_IN_FEWER_BITS = 1e-3, 0.2
"""The most by which equal tensors may differ, as a share of their norm."""


def measured(model: PreTrainedModel) -> Architecture:
    """Return the parts of a loaded model, which is in evaluation mode.

    Raises:
        UnknownArchitecture: see `named_parts`; or a token sees later ones, the head's outputs are not the
            model's logits, or an adapted layer does not read each token once.
    """
    parts = named_parts(model)
    roles = role_linears(parts, _fused_rows(model, parts))
    frozen = frozen_parts(model, parts, roles)
    architecture = Architecture(parts.decoder, parts.layers, (parts.head,), roles, frozen)
    kind = str(model.config.model_type)
    if not any(roles):
        raise UnknownArchitecture(f"{kind} fuses its linear layers in an order that cannot be measured")
    hidden, logits = _probed(model, architecture)
    limit = _MOST_IN_FLOAT32 if model.dtype == torch.float32 else _MOST_IN_FEWER_BITS
    before, last = hidden[:, :-1], hidden[:, -1]
    # `not <`, so that NaN is refused as well.
    if not _distance(before[0], before[1]) < limit * _distance(last[0], last[1]):
        raise UnknownArchitecture(f"{kind} lets a token see later ones, so it is not a causal language model")
    with torch.inference_mode():
        candidates = [
            replace(architecture, heads=heads, scale=scale, softcap=softcap)
            for heads in _heads(model, architecture)
            for scale, softcap in _adjustments(model)
        ]
        distances = [_distance(candidate.logits(model, hidden), logits) for candidate in candidates]
    # The nearest of all: numbers of the config suggest factors, and do not say which of them is applied.
    nearest = min(range(len(candidates)), key=distances.__getitem__)
    if not distances[nearest] < limit * float(logits.float().norm()):
        raise UnknownArchitecture(f"the logits of {kind} are not the outputs of its head ({parts.head})")
    return candidates[nearest]


def _fused_rows(model: PreTrainedModel, parts: NamedParts) -> dict[tuple[str, int], Mapping[Role, Tensor]]:
    """Return the rows of fused layers, by path below a transformer layer and outputs; measured once each."""
    decoder = cast(Any, model.get_submodule(parts.decoder))
    rows: dict[tuple[str, int], Mapping[Role, Tensor]] = {}
    for number, layer in enumerate(parts.placed):
        for fused in layer:
            reader = reader_of(layer, fused)
            if len(fused.roles) == 1 or fused.key in rows or reader is None:
                continue
            modules = [
                model.get_submodule(f"{parts.layers}.{number}.{placed.linear.path}")
                for placed in (fused, reader)
            ]
            rows[fused.key] = measured_rows(decoder, modules[0], modules[1], fused)
    return rows


@torch.inference_mode()
def _probed(model: PreTrainedModel, architecture: Architecture) -> tuple[Tensor, Tensor]:
    """Return hidden states (2, t, d) and logits (2, t, V) of two texts that differ in their last token.

    Raises:
        UnknownArchitecture: an adapted layer does not read each token once.
    """
    vocabulary = int(model.get_submodule(architecture.output_layer).get_parameter("weight").shape[0])
    ids = torch.arange(_FIRST_TOKEN, _FIRST_TOKEN + _POSITIONS).remainder(vocabulary).repeat(2, 1)
    # Only the last token differs, which no earlier position may see.
    ids[1, -1] = (ids[1, -1] + 1) % vocabulary
    ids = ids.to(model.device)
    read = torch.ones_like(ids)
    decoder = cast(Any, model.get_submodule(architecture.decoder))
    layers = {
        path: model.get_submodule(path)
        for path in {x.path for layer in architecture.roles for x in layer.values()}
    }
    with _tokens_read(layers) as tokens:
        try:
            hidden = decoder(input_ids=ids, attention_mask=read, use_cache=False).last_hidden_state
            logits = cast(Any, model)(input_ids=ids, attention_mask=read, use_cache=False).logits
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # models have no common error for inputs that they lack
            raise UnknownArchitecture(
                f"{model.config.model_type} computes no logits from tokens alone ({error})"
            ) from error
    odd = sorted(path for path in layers if tokens.get(path) != [ids.numel()] * 2)
    if odd:
        raise UnknownArchitecture(
            f"{odd[0]} of {model.config.model_type} does not read each token once, so that its gradients "
            "cannot be told by token"
        )
    return hidden, logits


@contextmanager
def _tokens_read(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, list[int]]]:
    """Yield how many tokens each call of each module reads."""
    calls: dict[str, list[int]] = {}

    def count(path: str) -> Any:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            calls.setdefault(path, []).append(arguments[0][..., 0].numel())

        return hook

    hooks = [module.register_forward_pre_hook(count(path)) for path, module in modules.items()]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _heads(model: PreTrainedModel, architecture: Architecture) -> list[tuple[str, ...]]:
    """Return the output layer alone, and behind each part of the model beside decoder and output layer."""
    used = (architecture.decoder, architecture.output_layer)
    width = model.get_submodule(architecture.output_layer).get_parameter("weight").shape[1]
    readers = [
        name
        for name, child in model.named_children()
        if not any(path == name or path.startswith(f"{name}.") for path in used)
        and any(linear_shape(x) == (width, width) for x in child.modules() if isinstance(x, nn.Linear))
    ]
    return [architecture.heads, *((name, architecture.output_layer) for name in readers)]


def _adjustments(model: PreTrainedModel) -> Iterator[tuple[float, float | None]]:
    """Yield the factors and softcaps of logits that numbers of the config suggest, none first."""
    config = cast(Any, model.config).get_text_config()
    suggested = {name: getattr(config, name, None) for name in dir(config) if _about(name)}
    numbers = {name: float(x) for name, x in suggested.items() if isinstance(x, float | int) and x}
    caps = [x for name, x in numbers.items() if "softcap" in name]
    scales = [x for name, x in numbers.items() if "softcap" not in name]
    factors: Sequence[float] = [1.0, *scales, *(1 / scale for scale in scales)]
    yield from ((scale, cap) for cap, scale in product([None, *caps], factors))


def _about(name: str) -> bool:
    return "logit" in name or name.startswith("lm_head")


def _distance(first: Tensor, second: Tensor) -> float:
    return float((first.float() - second.float()).norm())
