"""Look at everything a run needs, and say about each what was found. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from client_agent.adapters.frames import random_frames
from client_agent.adapters.inject import inject
from client_agent.errors import AgentError, CoordinatorRefused, NotEnrolled
from client_agent.identity.membership import connect_once, pending_key_file, read_membership
from client_agent.model.examples import encode_all, encode_for
from client_agent.model.loading import BaseModel, base_model_slug, load_base_model
from client_agent.model.tokens import collate, pad_id
from client_agent.privacy.budget import require_private, require_voices
from client_agent.privacy.ledger import Ledger
from client_agent.rounds.plan import KnownPlan, federation_plan, known_plan
from client_agent.rounds.sketch import mechanism_for
from client_agent.settings import AgentSettings, read_settings
from client_agent.training.data import SiloData, load_data
from client_agent.training.evaluate import evaluate
from client_agent.training.memory import held_bytes, step_memory
from client_agent.training.silo import device_named, dtype_of
from schemas import PROTOCOL_VERSION
from schemas.identity.keys import thumbprint
from schemas.messages.federations import TrainingPlan
from schemas.peers import of_members
from schemas.privacy import promise, spent

_PROBE_EXAMPLES = 4
_PROBE_LENGTH = 512


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    good: bool
    found: str


def findings(config: Path | None, plan: Path | None = None) -> list[Finding]:
    """Look at settings, device, model, data and connection; a wrong one never hides the next.

    What hangs on the plan is looked at under that of the file `plan`, or else under `known_plan`'s.
    """
    try:
        settings = read_settings(config)
    except AgentError as error:
        return [Finding("configuration", False, str(error))]
    results = [Finding("configuration", True, str(config) if config else "from the environment")]

    @cache
    def known() -> KnownPlan:
        return known_plan(settings, plan)

    looks: dict[str, Callable[[AgentSettings], str]] = {
        "device": _device,
        "model": _model,
        "shared model": _shared_model,
        "data": lambda settings: _data(settings, known().training),
        "memory": lambda settings: _memory(settings, known()),
        "privacy": lambda settings: _privacy(settings, known()),
        "other members": lambda settings: _members(settings, plan),
        "connection": _connection,
        "identity": _identity,
    }
    for what, look in looks.items():
        try:
            results.append(Finding(what, True, look(settings)))
        except AgentError as error:
            results.append(Finding(what, False, str(error)))
        except Exception as error:  # what nobody foresaw must not hide the next finding either
            results.append(Finding(what, False, f"{type(error).__name__}: {error}"))
    return results


def _device(settings: AgentSettings) -> str:
    device = device_named(settings.device)
    bits = "" if settings.quantization == "none" else f", linear layers in {settings.quantization}"
    return f"{device}, {dtype_of(settings, device)}{bits}".replace("torch.", "")


def _model(settings: AgentSettings) -> str:
    base = _loaded(settings)
    return f"{base.slug}: {base.architecture}, {base.layers} layers, {base.hidden_size} wide"


def _shared_model(settings: AgentSettings) -> str:
    return base_model_slug(settings.pivot_model) if settings.pivot_model else "our own model"


def _memory(settings: AgentSettings, known: KnownPlan) -> str:
    base = _loaded(settings)
    batch, length = known.training.batch_size, min(known.training.max_length, base.positions)
    chosen = _examples(settings).train[:_PROBE_EXAMPLES]
    texts = encode_all(chosen, base.tokenizer, min(_PROBE_LENGTH, length))
    probe = collate(texts, pad=pad_id(base.tokenizer)).to(base.device)
    # Which frames they are makes no difference to what a step needs.
    frames = random_frames(base, known.adapter, 0) if known.adapter.kind == "pq" else {}
    with inject(base, known.adapter, frames, gated=False, seed=0) as adapter:
        needed = step_memory(base, adapter, probe)
    planned = ", as planned" if known.training.gradient_checkpointing else ""
    return (
        f"{_size(held_bytes(base))} of weights; a step of {batch} x {length} tokens ({known.source}) up to "
        f"{_size(needed.step(batch * length))} more, {_size(needed.recomputing_step(batch * length))} with "
        f"checkpointing{planned}"
    )


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _data(settings: AgentSettings, plan: TrainingPlan) -> str:
    base, data = _loaded(settings), _examples(settings)
    encode_for(base, [*data.train, *data.test], plan.max_length)
    probe = data.test[:_PROBE_EXAMPLES]
    metrics = evaluate(base, probe, max_length=min(_PROBE_LENGTH, base.positions))
    return f"{len(data.train)} to train on, {len(data.test)} held out, loss now {metrics.loss:.2f}"


def _privacy(settings: AgentSettings, known: KnownPlan) -> str:
    plan, most = known.signature, settings.max_epsilon
    if most is not None and known.guessed:
        return f"max_epsilon {most:g} is kept, whatever the federation's plan will say ({known.source})"
    require_private(plan, most)
    if plan.dp is None:
        return f"signatures without noise ({known.source}): the coordinator is trusted with them"
    mechanism = mechanism_for(_examples(settings).train, plan, plan.dp)
    made = Ledger(settings.folder).read().releases
    so_far = spent(plan, max((entry.epsilon for entry in made), default=0.0), len(made))
    ours = "no max_epsilon is set: the plan alone says" if most is None else f"max_epsilon {most:g} is kept"
    return f"{promise(plan)}. Noise {mechanism.noise_multiplier:.2f}; {so_far}; {ours}"


def _members(settings: AgentSettings, file: Path | None) -> str:
    planned, least = federation_plan(settings, file), settings.min_voices
    if planned is None:
        return f"min_voices {least} is kept, whatever the federation's plan will say (not enrolled yet)"
    require_voices(planned, least)
    return " ".join([*of_members(planned), f"This silo's min_voices is {least}."])


def _connection(settings: AgentSettings) -> str:
    with connect_once(settings, None) as api:
        hello = api.hello()
    if hello.protocol_version != PROTOCOL_VERSION:
        theirs = hello.protocol_version
        raise AgentError(f"it speaks protocol {theirs}, this agent {PROTOCOL_VERSION}; update one of them")
    return f"{hello.name} at {settings.url}, protocol {hello.protocol_version}"


def _identity(settings: AgentSettings) -> str:
    try:
        membership = read_membership(settings.folder)
    except NotEnrolled:
        return "not enrolled yet: `tessera agent enrol` is the next step"
    waiting = pending_key_file(settings.folder)
    unfinished = (
        f"; {waiting} waits: `tessera agent rotate-key` finishes replacing the key" if waiting else ""
    )
    try:
        with connect_once(settings, membership) as api:
            api.proved_hello(thumbprint(membership.server_key))
            me = api.me()
    except CoordinatorRefused as refusal:
        if not waiting:
            raise
        raise AgentError(f"{refusal}{unfinished}") from refusal
    return f"{me.name}, client {me.client_id} of federation {me.federation_id}, {me.state}{unfinished}"


@cache
def _loaded(settings: AgentSettings) -> BaseModel:
    device = device_named(settings.device)
    return load_base_model(
        settings.model,
        device=device,
        dtype=dtype_of(settings, device),
        quantization=settings.quantization,
    )


@cache
def _examples(settings: AgentSettings) -> SiloData:
    return load_data(settings.train, settings.test, test_share=settings.test_share)
