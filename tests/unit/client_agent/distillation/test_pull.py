"""The pull to peers' outputs: their gradient where they are surer, none elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from client_agent.adapters.base import Adapter
from client_agent.adapters.inject import inject_lora
from client_agent.distillation.pull import pull_to_peers
from client_agent.model.loading import BaseModel
from client_agent.model.next_bytes import NextBytes
from client_agent.rounds.train import total_penalty
from schemas.messages.adapter_plan import AdapterPlan
from schemas.messages.alignment import Anchor
from schemas.wire.outputs import VALUES, Outputs
from tests.scene.local_training import losses_along

WORDS = ("abc", "xyz")
ANCHORS = [Anchor(id=word, prompt=f"rev {word}=", answer=word[::-1]) for word in WORDS]
LORA = AdapterPlan(kind="lora", rank=2, bias=False, roles=("v", "down"))

Setting = tuple[BaseModel, Adapter, NextBytes]


@pytest.fixture
def setting(tiny: Callable[..., BaseModel]) -> Iterator[Setting]:
    base = tiny()
    with inject_lora(base, LORA, seed=0) as adapter:
        yield base, adapter, NextBytes(base, ANCHORS, 64)


def certain_outputs(byte: str, rows: int) -> Outputs:
    dense = np.zeros((rows, VALUES), np.float32)
    dense[:, ord(byte)] = 1
    return Outputs.of(dense)


def test_client_learns_confident_outputs_of_peers(setting: Setting) -> None:
    _, adapter, public = setting
    losses = losses_along(pull_to_peers(public, certain_outputs("q", public.rows), 1.0), adapter, 0.05)
    assert losses[-1] < losses[0] - 0.3


def test_surer_client_is_not_moved_by_its_peers(setting: Setting) -> None:
    base, adapter, public = setting
    flat = np.zeros((public.rows, VALUES), np.float32)
    flat[:, 97:105] = 1 / 8
    with torch.no_grad():
        base.model.get_submodule("lm_head").weight.mul_(100)
    logs, _ = public.log_shares(public.texts)
    assert float(-(logs.exp() * logs).sum(1).detach().max()) < np.log(8)
    value = pull_to_peers(public, Outputs.of(flat), 1.0)(adapter.named_parameters())
    assert value.item() == 0
    value.backward()  # a step that follows nobody is a step all the same
    assert all(not parameter.grad.any() for parameter in adapter.named_parameters().values())
    assert (
        pull_to_peers(public, certain_outputs("q", public.rows), 1.0)(adapter.named_parameters()).item() > 0
    )


def test_factor_scales_the_mean_over_rows(setting: Setting) -> None:
    _, adapter, public = setting
    mixture = certain_outputs("q", public.rows)
    logs, _ = public.log_shares(public.texts)
    expected = -logs[:, ord("q")].mean().item()
    penalty = pull_to_peers(public, mixture, 0.25)
    assert penalty(adapter.named_parameters()).item() == pytest.approx(0.25 * expected, rel=1e-4)


def test_rows_without_peers_add_no_loss(setting: Setting) -> None:
    _, adapter, public = setting
    mixture = certain_outputs("q", public.rows)
    mixture.shares[1:] = 0
    logs, _ = public.log_shares(public.texts)
    value = pull_to_peers(public, mixture, 1.0)(adapter.named_parameters())
    assert value.item() == pytest.approx(-logs[0, ord("q")].item(), rel=1e-4)


def test_text_draws_follow_the_stored_generator_state(tiny: Callable[..., BaseModel]) -> None:
    base = tiny()
    many = [Anchor(id=str(place), prompt=f"rev {place}=", answer=str(place)) for place in range(40)]
    with inject_lora(base, LORA, seed=0) as adapter:
        public = NextBytes(base, many, 64)
        penalty = pull_to_peers(public, certain_outputs("q", public.rows), 1.0)

        def draw() -> float:
            return penalty(adapter.named_parameters()).item()

        torch.manual_seed(3)
        first = draw()
        state = torch.get_rng_state()
        second = draw()
        torch.set_rng_state(state)
        assert draw() == second
        assert first != second


def test_loss_terms_are_added() -> None:
    def three(_: Mapping[str, nn.Parameter]) -> Tensor:
        return torch.tensor(3.0)

    def four(_: Mapping[str, nn.Parameter]) -> Tensor:
        return torch.tensor(4.0)

    assert total_penalty([None, None]) is None
    for terms, expected in (([three, None], 3), ([None, four], 4), ([three, four], 7)):
        together = total_penalty(terms)
        assert together is not None
        assert together({}).item() == expected
