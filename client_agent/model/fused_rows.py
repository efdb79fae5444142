"""Measure which output rows of a fused linear layer belong to which role.

The layer's output is replaced by noise z, and the model runs up to the next linear layer, whose input is
observed. For attention, at positions 0 and 1:
- at position 0 only one key is seen, so that the output is the value at 0: it depends on no query and no key;
- at position 1 it depends on the key and the value at 0, but not on the query at 0.
Of a gated feed-forward layer, the output is linear in `up`, and not in `gate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch
from torch import Tensor, nn

from client_agent.model.role_names import LayerRoles
from schemas.messages.federations import Role

_TEXTS, _POSITIONS = 8, 2
_NOISE = 0.5
_NO_VALUE, _NO_KEY = 2e-2, 1e-3
"""The shares of the largest gradient below which a row has none, but for rounding. Gradients of values are
equal, those of keys differ much, and those of queries are zero.
"""


class _EndOfPass(Exception):
    """Ends a forward pass after the last layer that is needed."""


def measured_rows(
    decoder: Callable[..., object], fused: nn.Module, reader: nn.Module, placed: LayerRoles
) -> dict[Role, Tensor]:
    """Return the rows (d_out of the role,) int64 of each role of a fused layer; {} if measuring fails.

    `reader` is the linear layer that reads the attention's or the feed-forward layer's output.
    """
    probe = _Probe(decoder, fused, reader, placed.linear.shape[0])
    rows = _gate_and_up(probe) if "up" in placed.roles else _queries_keys_and_values(probe)
    rows_of_roles = {role: rows[role] for role in placed.roles if role in rows and len(rows[role])}
    covered = torch.cat([*rows_of_roles.values(), torch.empty(0, dtype=torch.int64)])
    whole = sorted(cast(list[int], covered.tolist())) == list(range(probe.rows))
    # Rows must belong to exactly one role: a wrong order would train the wrong matrix without an error.
    return rows_of_roles if whole and len(rows_of_roles) == len(placed.roles) else {}


class _Probe:
    """A model up to `reader`, as a function of the output z (texts, positions, rows) of `fused`."""

    def __init__(
        self, decoder: Callable[..., object], fused: nn.Module, reader: nn.Module, rows: int
    ) -> None:
        self._decoder, self._fused, self._reader = decoder, fused, reader
        self.rows = rows
        parameter = next(reader.parameters())
        # A generator of its own: loading a model must not change the caller's random numbers.
        generator = torch.Generator().manual_seed(0)
        noise = _NOISE * torch.randn(_TEXTS, _POSITIONS, rows, generator=generator)
        self.noise = noise.to(parameter.device, cast(torch.dtype, getattr(decoder, "dtype", torch.float32)))

    def output(self, z: Tensor) -> Tensor:
        """Return the input of `reader`: (texts, positions, d_in)."""
        inputs: list[Tensor] = []

        def replace(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            return z.reshape(output.shape).to(output.dtype)

        def read(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            inputs.append(arguments[0])
            # Later layers are not needed, and would cost most of the time.
            raise _EndOfPass

        ids = torch.ones(_TEXTS, _POSITIONS, dtype=torch.int64, device=z.device)
        with (
            _hooked(self._fused.register_forward_hook(replace), self._reader.register_forward_pre_hook(read)),
            suppress(_EndOfPass),
        ):
            self._decoder(input_ids=ids, use_cache=False)
        return inputs[0].float().reshape(_TEXTS, _POSITIONS, -1)

    def gradient(self, position: int) -> Tensor:
        """Return the gradient of the sum of outputs at a position with respect to z: |dz| as z, float32."""
        z = self.noise.clone().requires_grad_()
        with torch.enable_grad():
            total = self.output(z)[:, position].sum()
        (gradient,) = torch.autograd.grad(total, z)
        return gradient.float().abs()


def _queries_keys_and_values(probe: _Probe) -> Mapping[Role, Tensor]:
    # The largest over texts: a single text may have a gradient near zero by chance.
    at_first, at_second = (probe.gradient(position)[:, 0].amax(dim=0).cpu() for position in (0, 1))
    value = at_first > _NO_VALUE * at_first.max()
    other_keys = at_second.masked_fill(value, 0)
    key = other_keys > _NO_KEY * other_keys.max()
    masks: dict[Role, Tensor] = {"q": ~value & ~key, "k": key, "v": value}
    return {role: torch.nonzero(mask).flatten() for role, mask in masks.items()}


def _gate_and_up(probe: _Probe) -> Mapping[Role, Tensor]:
    """Return the halves of the rows, or the even and the odd rows, of which one is linear."""
    numbers = torch.arange(probe.rows)
    halves = (numbers[: probe.rows // 2], numbers[probe.rows // 2 :])
    # The two orders in use: one half after the other, and row by row.
    for first, second in (halves, (numbers[0::2], numbers[1::2])):
        linear = [_is_linear(probe, rows) for rows in (first, second)]
        if linear == [False, True]:
            return {"gate": first, "up": second}
        if linear == [True, False]:
            return {"gate": second, "up": first}
    return {}


@torch.no_grad()
def _is_linear(probe: _Probe, rows: Tensor) -> bool:
    """Whether the output doubles when z doubles in these rows, for all texts."""
    doubled = probe.noise.clone()
    doubled[..., rows.to(doubled.device)] *= 2
    before, after = probe.output(probe.noise), probe.output(doubled)
    return bool((after - 2 * before).norm() < 0.02 * before.norm())


@contextmanager
def _hooked(*handles: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def reader_of(placed: Sequence[LayerRoles], fused: LayerRoles) -> LayerRoles | None:
    """Return the output layer beside a fused layer; None if there is none."""
    role: Role = "down" if "up" in fused.roles else "o"
    return next((linear for linear in placed if linear.roles == (role,)), None)
