"""Put the adapter of a strategy around a silo's base model, for training, scoring and export alike."""

from __future__ import annotations

from collections.abc import Sequence

from client_agent.adapters.base import Adapter
from client_agent.adapters.inject import inject
from client_agent.rounds.part import Part, Setting


def put_in_place(setting: Setting, parts: Sequence[Part], *, gated: bool = False) -> Adapter:
    """Wrap the base model in the adapter of a plan, as its parts make it.

    A learning rate is searched before `prepare`: a bank that chooses by losses would search for its choice.

    Raises:
        AdapterInPlace, LayoutMismatch: see `inject`.
    """
    injected = (part.inject(setting) for part in parts)
    adapter = next((adapter for adapter in injected if adapter is not None), None)
    if adapter is None:
        adapter = inject(setting.silo.base, setting.plan, setting.frames, gated=gated, seed=setting.seed)
    try:
        for part in parts:
            adapter = part.wrap(adapter, setting.silo.base)
    # The base model is shared by all rounds: it must be bare again also after an interrupt.
    except BaseException:
        adapter.remove()
        raise
    return adapter


def prepare(adapter: Adapter, setting: Setting, parts: Sequence[Part]) -> None:
    """Call `prepare` of each part for an adapter in place, before tensors are loaded."""
    for part in parts:
        part.prepare(adapter, setting)
