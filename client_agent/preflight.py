"""Check everything that a run needs: settings, device, model, data and connection.

Changes nothing, except that a model in a .gguf file is converted into the agent's folder, as for a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import disk_usage, which

from client_agent.adapters.frames import first_adapted_layer, random_frames
from client_agent.adapters.inject import inject
from client_agent.agent_entries import PREFIXES
from client_agent.errors import AgentError, CoordinatorRefused, DataInvalid, NotEnrolled, SettingsUnusable
from client_agent.export.gguf_lora import require_supported
from client_agent.export.vllm_rules import require_served
from client_agent.identity.agent_folder import read_membership
from client_agent.identity.membership import connect_once, pending_key_file, require_enrolled
from client_agent.model.examples import encode_all, encode_for, encode_some, learnt_end
from client_agent.model.frozen_prefix import is_worth_storing
from client_agent.model.gguf import model_folder
from client_agent.model.loading import BaseModel, base_model_slug
from client_agent.model.template_facts import ending_fault
from client_agent.model.tokenizer_digests import tokenizer_digests
from client_agent.model.tokens import collate, pad_id
from client_agent.privacy.budget import require_voices
from client_agent.rounds.client import require_policy
from client_agent.rounds.plan import (
    SiloPlan,
    federation_plan,
    parse_plan,
    read_plan,
    require_trainer,
    served_plan,
    training_plan,
)
from client_agent.rounds.privacy_facts import privacy_facts
from client_agent.session import require_trackers
from client_agent.settings import AgentSettings, read_settings
from client_agent.training.data import SiloData
from client_agent.training.evaluate import mean_loss, options_of_examples
from client_agent.training.memory import held_bytes, step_memory, unquantised_expert_bytes
from client_agent.training.remarks import remarks_on
from client_agent.training.silo import device_named, dtype_of, load_own_model, load_silo_data, options_of
from client_agent.training.token_losses import shared_rows
from client_agent.transport.handshake import require_protocol
from schemas.identity.keys import thumbprint
from schemas.messages.federations import TrainingPlan
from schemas.peers import member_claims
from schemas.user_files import FileUnusable, require_writable_folder
from schemas.wire.digests import digest_of

_PROBE_EXAMPLES = 4
_PROBE_LENGTH = 512
_FILES_OF_A_ROUND = 3
"""Weights, trained adapter and update, each of the adapter's size at most."""
_FILES_IN_TRAINING = 4
"""The position inside a training: the adapter, two moments, and the best adapter so far."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    subject: str
    passed: bool
    detail: str

    def document(self) -> dict[str, str | bool]:
        """Return the finding under the keys of `tessera agent check --json`."""
        return {"what": self.subject, "good": self.passed, "found": self.detail}


def findings(config: Path | None, plan: Path | None = None) -> list[Finding]:
    """Run every check; a failed one does not prevent the next.

    Args:
        plan: the file of the plan to check for; None = the plan of `training_plan`.
    """
    try:
        settings = read_settings(config)
    except AgentError as error:
        return [Finding("configuration", False, str(error))]
    results = [Finding("configuration", True, str(config) if config else "from the environment")]

    @cache
    def silo_plan() -> SiloPlan:
        return training_plan(settings, plan)

    checks: dict[str, Callable[[AgentSettings], str]] = {
        "device": _device,
        "model": _model,
        "shared model": _shared_model,
        "data": lambda settings: _data(settings, silo_plan().training),
        "end of answers": _ends,
        "trainer": lambda settings: _trainer(settings, plan),
        "memory": lambda settings: _memory(settings, silo_plan()),
        "frozen prefix": lambda settings: _prefix(settings, silo_plan()),
        "disk": lambda settings: _disk(settings, silo_plan()),
        "privacy": lambda settings: _privacy(settings, silo_plan(), plan),
        "policy": lambda settings: _policy(settings, plan),
        "other members": lambda settings: _members(settings, plan),
        "trackers": _trackers,
        "export": _export,
        "connection": _connection,
        "identity": _identity,
    }
    for subject, check in checks.items():
        try:
            results.append(Finding(subject, True, check(settings)))
        except (AgentError, FileUnusable) as error:
            results.append(Finding(subject, False, str(error)))
        except Exception as error:  # an unexpected error must not prevent the next check either
            results.append(Finding(subject, False, f"{type(error).__name__}: {error}"))
    return results


def _device(settings: AgentSettings) -> str:
    device = device_named(settings.device)
    bits = "" if settings.quantization == "none" else f", linear layers in {settings.quantization}"
    return f"{device}, {dtype_of(settings, device)}{bits}".replace("torch.", "")


def _model(settings: AgentSettings) -> str:
    base = _loaded(settings)
    options_of(settings, base)
    require_enrolled(settings.folder, base.slug, tokenizer_digests(base.tokenizer, chats=False))
    size = f"{base.slug}: {base.architecture}, {base.layers} layers, {base.hidden_size} wide"
    dense = unquantised_expert_bytes(base) if settings.quantization != "none" else 0
    experts = [f"{_size(dense)} of routed experts are not in {settings.quantization}"] if dense else []
    return "; ".join([size, *base.parts.frozen.sentences(), *experts])


def _shared_model(settings: AgentSettings) -> str:
    pivot = settings.pivot_model
    return base_model_slug(model_folder(pivot, settings.folder)) if pivot else "the silo's own model"


def _memory(settings: AgentSettings, planned: SiloPlan) -> str:
    base = _loaded(settings)
    batch, length = planned.training.batch_size, min(planned.training.max_length, base.positions)
    examples = _examples(settings).train[:_PROBE_EXAMPLES]
    # A few short texts: memory is measured on them and calculated for a whole step.
    texts = encode_all(examples, base.tokenizer, min(_PROBE_LENGTH, length))
    probe = collate(texts, pad=pad_id(base.tokenizer)).to(base.device)
    # The memory of a step does not depend on the values of the frames.
    frames = random_frames(base, planned.adapter, 0) if planned.adapter.kind == "pq" else {}
    with inject(base, planned.adapter, frames, gated=False, seed=0) as adapter:
        needed = step_memory(base, adapter, probe)
    suffix = ", as planned" if planned.training.gradient_checkpointing else ""
    return (
        f"{_size(held_bytes(base))} of weights; a step of {batch} x {length} tokens ({planned.source}) up to "
        f"{_size(needed.step(batch * length))} more, {_size(needed.recomputing_step(batch * length))} with "
        f"checkpointing{suffix}"
    )


def _prefix(settings: AgentSettings, planned: SiloPlan) -> str:
    """Return what storing the layers below the first adapter takes and saves; see `FrozenPrefix`."""
    base = _loaded(settings)
    frames = random_frames(base, planned.adapter, 0) if planned.adapter.kind == "pq" else {}
    first = first_adapted_layer(base, planned.adapter, frames)
    if not settings.prefix_cache_mib:
        return "nothing is stored, as prefix_cache_mib is 0: all layers are computed in each step"
    if not is_worth_storing(first, base.layers):
        return f"nothing is stored: adapters begin in layer {first} of {base.layers} ({planned.source})"
    count, needed = _stored_texts(settings, planned)
    packed = "; with packing, training computes all layers" if settings.packing else ""
    return (
        f"{first} of {base.layers} layers are computed once per text ({planned.source}): {count} texts, "
        f"options included, take {_size(needed)} of at most {_size(settings.prefix_cache_mib << 20)}; a step "
        f"computes {base.layers - first} layers{packed}"
    )


def _stored_texts(settings: AgentSettings, planned: SiloPlan) -> tuple[int, int]:
    """Return the number of texts whose lower layers are stored, and their size in bytes."""
    base, data, length = _loaded(settings), _examples(settings), planned.training.max_length
    texts = [text for side in (data.train, data.validation) for text in encode_for(base, side, length)]
    scored = [*encode_for(base, data.test, length), *options_of_examples(base, data.test, length)]
    texts += [row.text for row in shared_rows(scored)]
    return len(texts), sum(len(text.ids) for text in texts) * base.hidden_size * base.model.dtype.itemsize


def _disk(settings: AgentSettings, planned: SiloPlan) -> str:
    """Compare the free space of the agent's folder with what the files of rounds take.

    Raises:
        SettingsUnusable: there is less.
    """
    base = _loaded(settings)
    frames = random_frames(base, planned.adapter, 0) if planned.adapter.kind == "pq" else {}
    with inject(base, planned.adapter, frames, gated=False, seed=0) as adapter:
        values = sum(parameter.numel() for parameter in adapter.named_parameters().values())
    # One round more than is kept, since the oldest is deleted after the newest is written.
    needed = 4 * values * (_FILES_OF_A_ROUND * (settings.keep_rounds + 1) + _FILES_IN_TRAINING)
    if settings.prefix_cache_mib and is_worth_storing(
        first_adapted_layer(base, planned.adapter, frames), base.layers
    ):
        stored = sum(
            file.stat().st_size for file in (settings.folder / PREFIXES).rglob("*") if file.is_file()
        )
        needed += max(0, min(_stored_texts(settings, planned)[1], settings.prefix_cache_mib << 20) - stored)
    folder = settings.folder.absolute()
    require_writable_folder(folder, "folder")
    # The folder may not exist yet, and its disk is that of the nearest folder that does.
    free = disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    fact = f"{_size(free)} free on the disk of {settings.folder}, and rounds need up to {_size(needed)}"
    if free < needed:
        raise SettingsUnusable(f"{fact}; free space, or set `folder` to another disk")
    return f"{fact} ({planned.source})"


def _export(settings: AgentSettings) -> str:
    """Check the format, the folder and the command of exports after rounds.

    Raises:
        ExportUnsupported: the format does not support the base model's architecture.
        SettingsUnusable: this machine has no program of the command's name.
    """
    table = settings.export
    if table.after_round is None:
        return "revisions stay in the agent's folder, as export.after_round is not set"
    if table.after_round == "gguf":
        require_supported(_loaded(settings))
    if table.after_round == "vllm":
        require_served(_loaded(settings))
    require_writable_folder(table.folder, "export.folder")
    if table.run and which(table.run[0]) is None:
        raise SettingsUnusable(
            f"export.run: there is no program {table.run[0]} on this machine; correct the command"
        )
    command = f"; then {table.run[0]} runs for at most {table.run_seconds:g} s" if table.run else ""
    return f"each new revision for {table.after_round} in {table.folder}{command}"


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _data(settings: AgentSettings, plan: TrainingPlan) -> str:
    base, data = _loaded(settings), _examples(settings)
    for examples in (data.train, data.validation, data.test):  # as training and scoring tokenise them: once
        encode_for(base, examples, plan.max_length)
    length = min(_PROBE_LENGTH, base.positions)
    loss = mean_loss(base, encode_some(base, data.test[:_PROBE_EXAMPLES], _PROBE_EXAMPLES, length))
    skipped = f", {len(data.skipped)} rows skipped" if data.skipped else ""
    fault = ending_fault(base.tokenizer) if any(example.turns for example in data.all) else None
    # The fault is a check of its own.
    remarks = [remark for remark in remarks_on(data, base.tokenizer) if remark != fault]
    return "; ".join(
        [
            f"{len(data.train)} to train on, {len(data.validation)} for validation, {len(data.test)} held out"
            f"{skipped}, loss now {loss:.2f}",
            *remarks,
        ]
    )


def _ends(settings: AgentSettings) -> str:
    base, data = _loaded(settings), _examples(settings)
    if not any(example.turns for example in data.all):
        return f"with {base.tokenizer.eos_token}"
    if fault := ending_fault(base.tokenizer):
        raise DataInvalid(fault)
    return f"with {learnt_end(next(e for e in data.all if e.turns), base.tokenizer)}"


def _privacy(settings: AgentSettings, planned: SiloPlan, file: Path | None) -> str:
    # A guessed plan means that the coordinator did not answer; it is not asked again.
    whole = federation_plan(settings, file) if not planned.guessed else None
    return privacy_facts(settings, planned, whole, lambda: _examples(settings))


def _members(settings: AgentSettings, file: Path | None) -> str:
    plan, least = federation_plan(settings, file), settings.min_voices
    if plan is None:
        return f"min_voices {least} limits the federation's plan, which is not known yet (not enrolled yet)"
    require_voices(plan, least)
    return " ".join([*member_claims(plan), f"This silo's min_voices is {least}."])


def _policy(settings: AgentSettings, file: Path | None) -> str:
    """Return the rules in force, and the digest of the federation's plan that `policy.plan` may name."""
    rules = settings.policy.sentences()
    if file is not None:
        require_policy(settings.policy, read_plan(file), None)
        return f"{rules}; {file} is allowed"
    served = served_plan(settings)
    if served is None:
        return f"{rules} (not enrolled yet)"
    require_policy(settings.policy, parse_plan(served), served)
    return f"{rules}; the plan has the digest {digest_of(served)}"


def _trainer(settings: AgentSettings, file: Path | None) -> str:
    if settings.trainer is None:
        return "Tessera's own loop"
    require_trainer(settings, None)  # also where no coordinator answers
    return require_trainer(settings, federation_plan(settings, file))


def _trackers(settings: AgentSettings) -> str:
    require_trackers(settings)
    servers = [address for address in (settings.mlflow_uri, settings.wandb_url) if address is not None]
    if not settings.report_to:
        return "none"
    places = f"in {settings.trackers.folder}" if not servers else f"values go to {', '.join(servers)}"
    return f"{', '.join(settings.report_to)}: {places}"


def _connection(settings: AgentSettings) -> str:
    with connect_once(settings, None) as api:
        hello = api.hello()
    require_protocol(hello)
    return f"{hello.name} at {settings.url}, protocol {hello.protocol_version}"


def _identity(settings: AgentSettings) -> str:
    try:
        membership = read_membership(settings.folder)
    except NotEnrolled:
        return "not enrolled yet; next: tessera agent enrol"
    waiting = pending_key_file(settings.folder)
    unfinished = (
        f"; {waiting} is a new key not yet in use: `tessera agent rotate-key` completes the rotation"
        if waiting
        else ""
    )
    try:
        with connect_once(settings, membership) as api:
            api.proved_hello(thumbprint(membership.server_key))
            client = api.me()
    except CoordinatorRefused as refusal:
        if not waiting:
            raise
        raise AgentError(f"{refusal}{unfinished}") from refusal
    place = f"client {client.client_id} of federation {client.federation_id}"
    return f"{client.name}, {place}, {client.state}{unfinished}"


@cache
def _loaded(settings: AgentSettings) -> BaseModel:
    return load_own_model(
        settings, model_folder(settings.model, settings.folder), device_named(settings.device)
    )


@cache
def _examples(settings: AgentSettings) -> SiloData:
    return load_silo_data(settings)
