"""Private steps: gradients clipped per example, their sum, the noise and the payments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from client_agent.adapters.base import Adapter
from client_agent.adapters.inject import inject_lora
from client_agent.errors import LossNotFinite, MissingGradient
from client_agent.model.examples import Example, encode_for
from client_agent.model.loading import BaseModel
from client_agent.model.tokens import TokenizedText
from client_agent.privacy.release import STEPS, Mechanism
from client_agent.storage.prefix_store import PrefixStore
from client_agent.training import private_steps as stepping
from client_agent.training.checkpoint import TrainingCheckpoint
from client_agent.training.loop import _gradient_of_text, answer_loss, train
from client_agent.training.private_steps import PrivateSteps
from schemas.messages.federations import AdapterPlan, TrainingPlan
from tests.scene.local_training import train_examples
from tests.scene.models import inject_random_pq

ADAPTER = AdapterPlan(rank=4, blocks=2)
PLAN = TrainingPlan(steps=4, batch_size=4, max_length=64, learning_rate=0.01)


@dataclass
class Paid:
    """Counts paid and begun steps."""

    paid: list[int] = field(default_factory=list)
    begun: int = 0

    def pay(self, steps: int) -> None:
        self.paid.append(steps)

    def begin_step(self) -> None:
        self.begun += 1


@pytest.fixture
def base(tiny: Callable[..., BaseModel]) -> BaseModel:
    return tiny()


@pytest.fixture(params=["lora", "pq", "gated"])
def adapter(request: pytest.FixtureRequest, base: BaseModel) -> Iterator[Adapter]:
    if request.param == "lora":
        lora = inject_lora(base, ADAPTER)
    else:
        lora = inject_random_pq(base, ADAPTER, gated=request.param == "gated")
    with lora as injected:
        torch.manual_seed(3)
        with torch.no_grad():
            for parameter in injected.named_parameters().values():
                parameter.add_(0.1 * torch.randn_like(parameter))
        yield injected


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "discrete_gaussians", lambda count, sigma: np.zeros(count, np.int64))


def size(parameters: Mapping[str, nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters.values())


def steps_of(
    base: BaseModel, adapter: Adapter, examples: Sequence[Example], *, sampled: int = 4, clip: float = 1.0
) -> PrivateSteps:
    records = [encode_for(base, [example], PLAN.max_length) for example in examples]
    dim = size(adapter.named_parameters())
    return PrivateSteps(records, Mechanism(sampled, len(records), 1.0, clip, dim), Paid())


def gradient_of(base: BaseModel, adapter: Adapter, text: TokenizedText) -> np.ndarray:
    """One example's gradient by its own backward pass, without the code under test."""
    from client_agent.model.tokens import collate, pad_id

    parameters = list(adapter.named_parameters().values())
    loss = answer_loss(base, collate([text], pad=pad_id(base.tokenizer))) / sum(text.answer[1:])
    gradients = torch.autograd.grad(loss, parameters)
    return torch.cat([gradient.reshape(-1) for gradient in gradients]).double().numpy()


def flat(parameters: Mapping[str, nn.Parameter]) -> np.ndarray:
    gradients = [parameter.grad for parameter in parameters.values()]
    assert all(gradient is not None for gradient in gradients)
    return torch.cat([g.reshape(-1) for g in gradients if g is not None]).double().numpy()


@pytest.mark.parametrize("clip", [1e-3, 0.5, 1e3])
def test_gradient_without_noise_is_mean_of_clipped_gradients(
    base: BaseModel, adapter: Adapter, examples: list[Example], no_noise: None, clip: float
) -> None:
    steps, parameters = steps_of(base, adapter, examples[:5], clip=clip), adapter.named_parameters()
    sample = [[record[0]] for record in steps.records]
    loss = steps.noisy_gradient(base, sample, parameters, _gradient_of_text)
    gradients = [gradient_of(base, adapter, text) for (text,) in sample]
    norms = [float(np.linalg.norm(gradient)) for gradient in gradients]
    expected = sum(g * min(1.0, clip / norm) for g, norm in zip(gradients, norms, strict=True)) / 4
    np.testing.assert_allclose(flat(parameters), expected, rtol=1e-4, atol=1e-6 * clip)
    assert np.isfinite(loss)
    assert float(np.linalg.norm(flat(parameters))) <= 5 * clip / 4 * (1 + 1e-6)


def test_additional_example_adds_only_its_clipped_gradient(
    base: BaseModel,
    adapter: Adapter,
    examples: list[Example],
    no_noise: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In integers: what an example adds is of the clip's length at most, with long neighbours or without."""
    sums: list[np.ndarray] = []
    monkeypatch.setattr(stepping, "_assign", lambda _, values: sums.append(values))
    steps, parameters = steps_of(base, adapter, examples, clip=0.25), adapter.named_parameters()
    texts = [[record[0]] for record in steps.records]
    for sample in (texts[:6], texts[:5], [texts[5]]):
        steps.noisy_gradient(base, sample, parameters, _gradient_of_text)
    unit = 0.25 / STEPS / 4
    with_it, without, alone = (np.rint(values / unit).astype(np.int64) for values in sums)
    assert np.array_equal(with_it - without, alone)
    assert 0 < sum(int(value) ** 2 for value in alone) <= STEPS**2


def test_noise_scale_is_that_of_the_mechanism(
    base: BaseModel, adapter: Adapter, examples: list[Example]
) -> None:
    steps, parameters = steps_of(base, adapter, examples, clip=2.0), adapter.named_parameters()
    drawn = []
    for _ in range(20):
        loss = steps.noisy_gradient(base, [], parameters, _gradient_of_text)
        assert np.isnan(loss)
        drawn.append(flat(parameters))
    noise = np.concatenate(drawn)
    assert noise.std() == pytest.approx(1.0 * 2.0 / 4, rel=0.15)
    assert abs(noise.mean()) < 5 * 0.5 / np.sqrt(noise.size)


def test_example_without_a_finite_gradient_adds_nothing(
    base: BaseModel, adapter: Adapter, examples: list[Example], no_noise: None
) -> None:
    steps, parameters = steps_of(base, adapter, examples), adapter.named_parameters()

    def broken(base: BaseModel, text: TokenizedText) -> float:
        for parameter in parameters.values():
            parameter.grad = torch.full_like(parameter, torch.nan)
        return float("nan")

    steps.noisy_gradient(base, [[steps.records[0][0]]], parameters, broken)
    assert not flat(parameters).any()


def test_gradient_that_reaches_no_parameter_is_an_error(
    base: BaseModel, adapter: Adapter, examples: list[Example]
) -> None:
    steps, parameters = steps_of(base, adapter, examples), adapter.named_parameters()
    with pytest.raises(MissingGradient, match="no gradient reaches"):
        steps.noisy_gradient(base, [[steps.records[0][0]]], parameters, lambda base, text: 0.0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_stored_prefix_of_a_gpu_is_not_read(
    base: BaseModel, examples: list[Example], tmp_path: Path, device: str
) -> None:
    base.prefix.store = PrefixStore(tmp_path, 2**24)
    stored: list[int] = []

    def gradient(named: BaseModel, text: TokenizedText) -> float:
        stored.append(base.prefix.first)
        return _gradient_of_text(base, text)

    with inject_lora(base, ADAPTER.model_copy(update={"kind": "lora", "layers": 2})) as adapter:
        steps, parameters = steps_of(base, adapter, examples), adapter.named_parameters()
        named = replace(base, device=torch.device(device))
        steps.noisy_gradient(named, [[steps.records[0][0]]], parameters, gradient)
        assert base.prefix.first == 2
    assert stored == [2 if device == "cpu" else 0]


def test_examples_are_drawn_independently_with_all_their_texts() -> None:
    first, second = (TokenizedText((1, n), (False, True), ()) for n in (2, 3))
    records = [(first, second), *((first,) for _ in range(11))]
    steps = PrivateSteps(records, Mechanism(3, 12, 1.0, 1.0, 1), Paid())
    samples = list(steps.samples(3000))
    sizes = np.array([len(sample) for sample in samples])
    assert sizes.mean() == pytest.approx(3, abs=0.15)
    assert sizes.var() == pytest.approx(12 * 0.25 * 0.75, rel=0.15)
    seconds = sum(text is second for sample in samples for (text,) in sample)
    assert seconds / 3000 == pytest.approx(0.125, abs=0.03)  # half of the draws of the first record


def test_step_is_paid_before_its_examples_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    payments = Paid()
    text = TokenizedText((1, 2), (False, True), ())
    steps = PrivateSteps([(text,)], Mechanism(1, 1, 1.0, 1.0, 1), payments)
    begun: list[int] = []
    monkeypatch.setattr(stepping, "sample_records", lambda *_: begun.append(payments.begun) or [0])
    assert list(steps.samples(3)) == [[[text]]] * 3
    assert (payments.paid, begun) == ([3], [1, 2, 3])


def train_privately(
    base: BaseModel,
    examples: Sequence[Example],
    steps: int,
    adapter: Adapter,
    private: PrivateSteps,
    *,
    checkpoint: TrainingCheckpoint | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[float]:
    return train(
        base,
        adapter,
        encode_for(base, examples, PLAN.max_length),
        PLAN.model_copy(update={"steps": steps}),
        learning_rate=0.02,
        seed=0,
        round_number=1,
        total_rounds=1,
        private=private,
        checkpoint=checkpoint,
        stop=stop,
    ).losses


@pytest.mark.slow
def test_private_training_learns_under_little_noise(base: BaseModel, examples: list[Example]) -> None:
    with inject_lora(base, ADAPTER) as adapter:
        steps = steps_of(base, adapter, examples[:4])
        private = replace(steps, mechanism=replace(steps.mechanism, noise_multiplier=0.02))
        losses = train_privately(base, examples[:4], 25, adapter, private)
    assert losses[-1] < losses[0] - 0.3


def test_private_trainings_differ_between_runs(base: BaseModel, examples: list[Example]) -> None:
    states = []
    for _ in range(2):
        with inject_lora(base, ADAPTER) as adapter:
            train_privately(base, examples, 2, adapter, steps_of(base, adapter, examples))
            states.append(adapter.state())
    assert not all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


def test_stopped_private_training_resumes_at_its_step(
    base: BaseModel, examples: list[Example], tmp_path: Path
) -> None:
    with inject_lora(base, ADAPTER) as adapter:
        private, payments = steps_of(base, adapter, examples), Paid()
        private, start = replace(private, payments=payments), adapter.state()
        checkpoint = TrainingCheckpoint(tmp_path / "partial", 1e9)
        stopped = train_privately(
            base, examples, 6, adapter, private, checkpoint=checkpoint, stop=lambda: payments.begun == 2
        )
        assert len(stopped) == 2
        adapter.load(start)  # as a new process does
        losses = train_privately(base, examples, 6, adapter, private, checkpoint=checkpoint)
    assert losses[:2] == pytest.approx(stopped, nan_ok=True)
    assert (len(losses), payments.paid, payments.begun) == (6, [6, 4], 6)


def test_infinite_loss_stops_only_training_without_noise(
    base: BaseModel, examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To stop would tell that such an example is there."""
    monkeypatch.setattr(
        "client_agent.training.loop.answer_loss", lambda base, batch: answer_loss(base, batch) * torch.inf
    )
    with inject_lora(base, ADAPTER) as adapter:
        with pytest.raises(LossNotFinite):
            train_examples(base, adapter, examples, PLAN)
        private = steps_of(base, adapter, examples)
        assert len(train_privately(base, examples, 2, adapter, private)) == 2
        assert all(np.isfinite(values).all() for values in adapter.state().values())
