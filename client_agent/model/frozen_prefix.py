"""The layers below the first adapter, whose output per text never changes and is computed once.

The hidden states that enter the first adapted layer are stored by the digest of a text's tokens, in the
precision of the model. On a CPU each text is computed alone, so that the stored bits do not depend on the
batch that needed it first: a training that was killed resumes to the same bytes. On a GPU, whose sums vary in
any case, the texts of a batch are computed together.
"""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from client_agent.model.quantization import precision_of
from client_agent.model.tokens import Batch
from client_agent.storage.prefix_store import PrefixStore

if TYPE_CHECKING:
    from client_agent.model.loading import BaseModel

log = logging.getLogger(__name__)

_PROBE = torch.tensor([[5, 6, 7, 8, 9, 10], [6, 8, 5, 9, 0, 0]])
_PROBE_READ = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
_MOST_IN_FLOAT32, _MOST_IN_FEWER_BITS = 1e-4, 0.05
"""The most by which hidden states with and without a stored prefix may differ, as a share of their norm."""


@dataclass(frozen=True, slots=True)
class _Split:
    """A model's layers, split at `first`; `modules` identifies the modules below it when they were tested."""

    layers: Sequence[nn.Module]
    first: int
    returns_tuple: Sequence[bool]
    modules: tuple[int, ...]

    @property
    def below(self) -> Sequence[nn.Module]:
        return self.layers[: self.first]

    def is_bare(self) -> bool:
        """Whether the layers below are unchanged: none of their modules has an adapter or a hook."""
        modules = [module for layer in self.below for module in layer.modules()]
        hooked = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
        # By identity: any replaced module may be an adapter.
        return not hooked and tuple(map(id, modules)) == self.modules


def is_worth_storing(first: int, layers: int) -> bool:
    """Whether to store the output of the layers below `first`; below half of all layers it saves little."""
    return 2 * first >= layers


class FrozenPrefix:
    """The stored hidden states of one base model; without a store, or at layer 0, everything is computed."""

    def __init__(self) -> None:
        self.store: PrefixStore | None = None
        self._split: _Split | None = None
        self._splits: dict[int, _Split | None] = {}

    @property
    def first(self) -> int:
        """Return the number of layers whose output is stored; 0 = none."""
        return self._split.first if self._split is not None else 0

    def split_at(self, base: BaseModel, first: int) -> None:
        """Store the hidden states that enter layer `first` from now on, where the model allows it.

        While there is an adapter or a hook below it, all layers are computed.
        """
        if self.store is None or not is_worth_storing(first, base.layers):
            self._split = None
            return
        if first not in self._splits:
            self._splits[first] = _tested(base, first)
        self._split = self._splits[first]
        if self._split is not None:
            precision = precision_of(base.model).replace(", ", "-")
            # All that determines the stored bits.
            self.store.use(f"{base.slug}-{precision}-{base.device.type}-below-{first}")
            log.debug("frozen prefix: %d of %d layers are computed once per text", first, base.layers)

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Compute all layers within the context."""
        split, self._split = self._split, None
        try:
            yield
        finally:
            self._split = split

    @contextmanager
    def in_place(self, base: BaseModel, batch: Batch) -> Iterator[None]:
        """Skip the layers below within the context, if their output for this batch can be stored."""
        split = self._split
        # In a packed row hidden states depend on the positions, which the digest does not have.
        if split is None or batch.positions is not None or not split.is_bare():
            yield
            return
        with _serving(split, self._entering(base, split, batch)):
            yield

    def _entering(self, base: BaseModel, split: _Split, batch: Batch) -> Tensor:
        """Return the hidden states that enter the first adapted layer, (n, t, d); zero where padded."""
        store = cast(PrefixStore, self.store)
        lengths = batch.attention.sum(dim=1).tolist()
        rows = [ids[:length] for ids, length in zip(batch.ids.tolist(), lengths, strict=True)]
        dtype, width = base.model.dtype, base.hidden_size
        entering = torch.zeros(*batch.ids.shape, width, dtype=dtype)
        names = [hashlib.sha256(array("q", ids).tobytes()).hexdigest() for ids in rows]
        missing: list[int] = []
        for row, (ids, name) in enumerate(zip(rows, names, strict=True)):
            content = store.get(name, len(ids) * width * dtype.itemsize)
            if content is None:
                missing.append(row)
            else:
                entering[row, : len(ids)] = torch.frombuffer(content, dtype=dtype).view(len(ids), width)
        # On a CPU alone, so that the bits do not depend on the batch; on a GPU they vary in any case.
        for group in [missing] if base.device.type == "cuda" and missing else [[row] for row in missing]:
            computed = _computed(base, split, [rows[row] for row in group])
            for row, hidden in zip(group, computed, strict=True):
                hidden = hidden.to("cpu", dtype).contiguous()
                store.put(names[row], hidden.view(torch.uint8).numpy().tobytes())
                entering[row, : len(rows[row])] = hidden
        return entering.to(base.device)


@torch.no_grad()
def _computed(base: BaseModel, split: _Split, texts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Compute the hidden states (t, d) of texts that enter the first adapted layer, in one batch."""
    tokens = _padded(texts).to(base.device)
    mask = _padded([[1] * len(ids) for ids in texts]).to(base.device)
    entered: list[Tensor] = []

    def enter(hidden: Tensor) -> Tensor:
        entered.append(hidden)
        return hidden

    identities = {number: (lambda hidden: hidden) for number in range(split.first + 1, len(split.layers))}
    with (
        # A training step may run under autocast, and scores do not: both read the same file.
        torch.autocast(base.device.type, enabled=False),
        _replaced(split, identities | {split.first: enter}),
    ):
        _decoded(base, tokens, mask)
    return [hidden[: len(ids)] for hidden, ids in zip(entered[0], texts, strict=True)]


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)  # (n, t)


def _serving(split: _Split, entering: Tensor) -> Any:
    """Replace the layers below: each returns its input, and the last of them `entering` (n, t, d)."""
    identities: dict[int, Callable[[Tensor], Tensor]] = {
        number: (lambda hidden: hidden) for number in range(split.first - 1)
    }
    return _replaced(split, identities | {split.first - 1: lambda _: entering})


@contextmanager
def _replaced(split: _Split, outputs: dict[int, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Replace the forward pass of layers, by number, by functions of their input."""
    with ExitStack() as stack:
        for number, output in outputs.items():
            layer = split.layers[number]

            def forward(
                hidden_states: Tensor,
                *_: Any,
                _output: Callable[[Tensor], Tensor] = output,
                _is_tuple: bool = split.returns_tuple[number],
                **__: Any,
            ) -> Any:
                hidden = _output(hidden_states)
                return (hidden,) if _is_tuple else hidden

            stack.callback(_restore, layer, layer.__dict__.get("forward"))
            layer.forward = forward
        yield


def _restore(layer: nn.Module, forward: Any) -> None:
    # The class's own method is in force again.
    del layer.forward
    if forward is not None:
        layer.forward = forward


def _tested(base: BaseModel, first: int) -> _Split | None:
    """Return the split of a model, or None with a reason in the log where its output would differ."""
    layers = cast(Sequence[nn.Module], base.model.get_submodule(base.parts.layers))
    vocabulary = base.vocabulary
    ids, mask = (_PROBE % vocabulary).to(base.device), _PROBE_READ.to(base.device)
    types: dict[int, bool] = {}

    def note(number: int) -> Callable[..., None]:
        return lambda *arguments: types.update({number: isinstance(arguments[-1], tuple)})

    hooks = [layer.register_forward_hook(note(number)) for number, layer in enumerate(layers)]
    try:
        with torch.no_grad():
            expected = _decoded(base, ids, mask)
    finally:
        for hook in hooks:
            hook.remove()
    token_places = mask.bool()
    # A layer that drops at random has another output in each step.
    if _differ(expected[token_places], _in_training(base, ids, mask)[token_places], base.model.dtype):
        _log_off(base, "its dropout changes the output of each training step")
        return None
    below = tuple(id(module) for layer in layers[:first] for module in layer.modules())
    split = _Split(layers, first, [types.get(number, False) for number in range(len(layers))], below)
    try:
        texts = [row[:length] for row, length in zip(ids.tolist(), mask.sum(dim=1).tolist(), strict=True)]
        rows = [_computed(base, split, [text])[0] for text in texts]
        entering = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        with torch.no_grad(), _serving(split, entering):
            served = _decoded(base, ids, mask)
    except Exception as error:  # layers have no common error for what they lack
        _log_off(base, f"a layer needs more than the output of the one below ({error})")
        return None
    if _differ(expected[token_places], served[token_places], base.model.dtype):
        _log_off(base, "a layer reads more than the output of the one below")
        return None
    return split


def _log_off(base: BaseModel, reason: str) -> None:
    log.warning("frozen prefix: off for %s, as %s; all layers are computed in each step", base.slug, reason)


def _in_training(base: BaseModel, ids: Tensor, mask: Tensor) -> Tensor:
    """Run the model in training mode, in which it may drop inputs, layers or tokens of experts at random."""
    model = cast(Any, base.model)
    with torch.random.fork_rng([base.device] if base.device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(0)
        model.train()
        try:
            return _decoded(base, ids, mask)
        finally:
            model.eval()


def _differ(first: Tensor, second: Tensor, dtype: torch.dtype) -> bool:
    limit = _MOST_IN_FLOAT32 if dtype == torch.float32 else _MOST_IN_FEWER_BITS
    # `not <`, so that NaN counts as a difference.
    return not float((first - second).float().norm()) < limit * float(first.float().norm())


def _decoded(base: BaseModel, ids: Tensor, mask: Tensor) -> Tensor:
    decoder = cast(Any, base.model.get_submodule(base.parts.decoder))
    return cast(Tensor, decoder(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state)
