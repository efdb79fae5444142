"""Laws of every adapter: silent start, copied states, checked tensors, trained parameters, clean removal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from client_agent.adapters import base as base_module
from client_agent.adapters.base import Adapter, require_bare
from client_agent.adapters.expert_lora import ExpertLora
from client_agent.adapters.expert_pq import ExpertPQ
from client_agent.adapters.frames import random_frames
from client_agent.adapters.inject import inject_lora, inject_pq
from client_agent.adapters.partial_lora import PartialLora
from client_agent.adapters.personal_lora import PersonalLora
from client_agent.adapters.variational.adapter import VariationalAdapter
from client_agent.errors import AdapterInPlace, LayoutMismatch
from client_agent.model.loading import BaseModel
from client_agent.rounds.strategy import load_strategy
from schemas.messages.federations import AdapterPlan
from schemas.strategies.ca_pfl import CaPflOptions
from tests.scene.models import answer_logits_of, inject_random_pq
from tests.scene.tensors import assert_same_bytes, random_tensors, zero_tensors

ROLES = ("q", "v", "down")
LORA = AdapterPlan(kind="lora", rank=4, scale=1.5, roles=ROLES)
PQ = AdapterPlan(rank=4, blocks=2, scale=1.5, roles=ROLES)
BESIDE_LORA = {"same_architecture_rank": 3, "private_rank": 2}

State = dict[str, NDArray[np.float32]]


def pq(*, gated: bool = False, **changes: Any) -> Callable[[BaseModel], Adapter]:
    return lambda base: inject_random_pq(base, PQ.model_copy(update=changes), gated=gated)


def unframed(base: BaseModel) -> Adapter:
    return inject_pq(base, PQ.model_copy(update=BESIDE_LORA), {}, gated=False)


def partial_lora(strategy: str) -> Callable[[BaseModel], Adapter]:
    half = load_strategy(strategy)
    return lambda base: PartialLora(inject_lora(base, LORA), half.options.travels, half.trains)


@dataclass(frozen=True)
class Method:
    """One row of the battery.

    Attributes:
        make: puts the adapter into a bare base model.
        atol: of a state that is read back; 0 = equal to the bit.
        load_resets_private: `load` replaces the private tensors, so that `load_private` comes afterwards.
        is_gated: the adapter has a global branch.
        takes_base_delta: the adapter accepts a base delta.
    """

    make: Callable[[BaseModel], Adapter]
    atol: float = 0.0
    load_resets_private: bool = False
    is_gated: bool = False
    takes_base_delta: bool = False


METHODS = {
    "pq": Method(pq()),
    "pq_gated": Method(pq(gated=True), is_gated=True),
    "pq_without_q": Method(pq(bias=False)),
    "pq_beside_lora": Method(pq(**BESIDE_LORA)),
    "pq_beside_shared_lora": Method(pq(same_architecture_rank=3)),
    "pq_beside_private_lora": Method(pq(private_rank=2)),
    "pq_gated_beside_private_lora": Method(pq(gated=True, private_rank=2), is_gated=True),
    "pq_without_q_beside_lora": Method(pq(bias=False, **BESIDE_LORA)),
    "lora_without_frames": Method(unframed),
    "lora": Method(lambda base: inject_lora(base, LORA), takes_base_delta=True),
    "ffa_lora": Method(partial_lora("ffa_lora")),
    "fedsa_lora": Method(partial_lora("fedsa_lora")),
    "ditto": Method(lambda base: PersonalLora(inject_lora(base, LORA), 0.1), load_resets_private=True),
    "ca_pfl": Method(
        lambda base: VariationalAdapter(inject_lora(base, LORA), base, CaPflOptions()),
        atol=1e-6,  # a prior is sent less its start
        load_resets_private=True,
    ),
    "bank_of_lora": Method(lambda base: ExpertLora(base, LORA, (0, 1, 4), seed=0)),
    "bank_of_pq": Method(lambda base: ExpertPQ(base, PQ, random_frames(base, PQ, 0), (0, 2, 3))),
}
ADAPTER_CLASS = re.compile(r"^class (\w+)\((?:AdapterBase|WholeAdapter|ExpertBank)\):", re.MULTILINE)
INJECTED = ("pq", "lora", "bank_of_lora", "bank_of_pq")
"""The adapters that others wrap: each looks for itself whether the base model is bare."""

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def random_state(adapter: Adapter, seed: int = 0) -> State:
    return random_tensors(adapter.layout, seed, 0.2)


def random_private(adapter: Adapter, seed: int = 1) -> State:
    return random_tensors(adapter.private_state(), seed, 0.2)


def assert_close(actual: Mapping[str, Any], expected: Mapping[str, Any], atol: float) -> None:
    if not atol:
        assert_same_bytes(actual, expected)
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, rtol=0, atol=atol, err_msg=name)


def unfit(stored: State) -> Iterator[State]:
    """Yield tensors of other names or shapes than the stored ones, with other values."""
    wrong = {name: values * 2 for name, values in stored.items()}
    yield {**wrong, "l9.q.A": np.ones((2, 2), np.float32)}
    if wrong:
        first, *remaining = wrong
        yield {name: wrong[name] for name in remaining}
        yield {**wrong, first: np.ones((3, 3), np.float32)}
        yield {**wrong, first: np.ones((3, 3, 3), np.float32)}


def assert_removal_restores(base: BaseModel, method: Method) -> None:
    bare = answer_logits_of(base)
    modules, attributes = dict(base.model.named_modules()), set(vars(base.model))
    with method.make(base) as adapter:
        adapter.load(random_state(adapter))
        adapter.load_private(random_private(adapter))
        assert not torch.allclose(answer_logits_of(base), bare, atol=1e-2)
    adapter.remove()
    require_bare(base)
    assert torch.equal(answer_logits_of(base), bare)
    after = dict(base.model.named_modules())
    assert after.keys() == modules.keys()
    assert all(after[path] is module for path, module in modules.items())
    assert set(vars(base.model)) == attributes


def test_battery_has_a_row_for_each_adapter(tiny: Callable[..., BaseModel]) -> None:
    sources = [file.read_text() for file in Path(base_module.__file__).parent.rglob("*.py")]
    declared = {name for source in sources for name in ADAPTER_CLASS.findall(source)}
    tested = set()
    for method in METHODS.values():
        with method.make(tiny()) as adapter:
            tested.add(type(adapter).__name__)
    assert tested == declared - {"WholeAdapter", "ExpertBank"}


@every_method
@pytest.mark.parametrize("architecture", ["llama", "phi3"])  # phi3: several roles in one layer
def test_removal_restores_the_base_model(
    tiny: Callable[..., BaseModel], method: Method, architecture: str
) -> None:
    assert_removal_restores(tiny(architecture), method)


def test_removal_restores_each_architecture(each_architecture: BaseModel) -> None:
    assert_removal_restores(each_architecture, METHODS["pq_beside_lora"])


@every_method
@pytest.mark.parametrize("architecture", ["llama", "phi3"])
def test_adapter_starts_silent(tiny: Callable[..., BaseModel], method: Method, architecture: str) -> None:
    base = tiny(architecture)
    bare = answer_logits_of(base)
    with method.make(base):
        torch.testing.assert_close(answer_logits_of(base), bare, rtol=0, atol=1e-6)


@every_method
def test_failed_load_leaves_the_model_bare(tiny: Callable[..., BaseModel], method: Method) -> None:
    base = tiny()
    bare = answer_logits_of(base)
    with pytest.raises(LayoutMismatch), method.make(base) as adapter:
        adapter.load({})
    require_bare(base)
    assert torch.equal(answer_logits_of(base), bare)


@every_method
def test_second_adapter_is_refused(tiny: Callable[..., BaseModel], method: Method) -> None:
    base = tiny()
    with method.make(base) as adapter:
        adapter.load(random_state(adapter))
        before = answer_logits_of(base)
        for second in INJECTED:
            with pytest.raises(AdapterInPlace):
                METHODS[second].make(base)
        assert torch.equal(answer_logits_of(base), before)


@every_method
def test_state_has_the_layout_as_float32(tiny: Callable[..., BaseModel], method: Method) -> None:
    with method.make(tiny()) as adapter:
        assert list(adapter.state()) == list(adapter.layout) == sorted(adapter.layout)
        assert {name: values.shape for name, values in adapter.state().items()} == adapter.layout
        assert adapter.merged_state().keys() == adapter.layout.keys()
        private = adapter.private_state()
        assert not private.keys() & adapter.layout.keys()
        for values in (*adapter.state().values(), *private.values()):
            assert values.dtype == np.float32
            assert values.flags.c_contiguous


@every_method
def test_loaded_states_are_read_back(tiny: Callable[..., BaseModel], method: Method) -> None:
    with method.make(tiny()) as adapter:
        state, private = random_state(adapter), random_private(adapter)
        steps = [(adapter.load, state), (adapter.load_private, private)]
        for order in [steps] if method.load_resets_private else [steps, steps[::-1]]:
            for load, values in order:
                load(values)
            assert_close(adapter.state(), state, method.atol)
            assert_close(adapter.private_state(), private, method.atol)


@every_method
def test_states_are_copies_of_tensors(tiny: Callable[..., BaseModel], method: Method) -> None:
    """Defect 11: the reference trained the bank that it was served in place."""
    with method.make(tiny()) as adapter:
        served = random_state(adapter)
        untouched = {name: values.copy() for name, values in served.items()}
        adapter.load(served)
        state, private = adapter.state(), adapter.private_state()
        before = {name: values.copy() for name, values in {**state, **private}.items()}
        with torch.no_grad():
            for parameter in adapter.named_parameters().values():
                parameter.add_(1)
        assert_same_bytes(served, untouched)
        assert_same_bytes({**state, **private}, before)
        adapter.load(served)
        assert_same_bytes(adapter.state(), state)


@every_method
def test_zeros_are_loaded_as_the_start(tiny: Callable[..., BaseModel], method: Method) -> None:
    """A pair of LoRA's factors with A = B = 0 would have no gradient: it gets the A of the seed."""
    with method.make(tiny()) as adapter:
        start = adapter.state()
        adapter.load(random_state(adapter))
        adapter.load(zero_tensors(adapter.layout))
        assert_same_bytes(adapter.state(), start)


@every_method
def test_unfit_tensors_are_refused_and_change_nothing(tiny: Callable[..., BaseModel], method: Method) -> None:
    with method.make(tiny()) as adapter:
        adapter.load(random_state(adapter))
        adapter.load_private(random_private(adapter))
        state, private = adapter.state(), adapter.private_state()
        refused = [(adapter.load, wrong) for wrong in unfit(state)]
        refused += [(adapter.load_private, wrong) for wrong in unfit(private)]
        for load, wrong in refused:
            with pytest.raises(LayoutMismatch):
                load(wrong)
            assert_same_bytes(adapter.state(), state)
            assert_same_bytes(adapter.private_state(), private)


@every_method
def test_parameter_groups_have_each_parameter_once(tiny: Callable[..., BaseModel], method: Method) -> None:
    with method.make(tiny()) as adapter:
        parameters = adapter.named_parameters().values()
        grouped = [parameter for group in adapter.parameter_groups(0.1) for parameter in group["params"]]
        assert sorted(map(id, grouped)) == sorted(map(id, parameters))
        assert all(parameter.requires_grad for parameter in parameters)
        assert {parameter.dtype for parameter in parameters} == {torch.float32}


@every_method
def test_global_branch_needs_gates(tiny: Callable[..., BaseModel], method: Method) -> None:
    with method.make(tiny()) as adapter:
        served = random_state(adapter)
        if method.is_gated:
            adapter.load_global(served)
            return
        with pytest.raises(AdapterInPlace):
            adapter.load_global(served)


@every_method
def test_base_delta_needs_a_whole_lora(tiny: Callable[..., BaseModel], method: Method) -> None:
    with method.make(tiny()) as adapter:
        if method.takes_base_delta:
            adapter.load_base_delta({})
            return
        with pytest.raises(AdapterInPlace):
            adapter.load_base_delta({})
