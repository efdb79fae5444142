"""A silo's resources for the lifetime of an agent: base model, shared small model and examples."""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from client_agent import __version__
from client_agent.agent_entries import PREFIXES
from client_agent.data.load import RowOptions
from client_agent.errors import ModelTooLarge, PivotMissing, SettingsUnusable
from client_agent.model.chat import set_template
from client_agent.model.examples import Example, encode_for
from client_agent.model.gguf import model_folder
from client_agent.model.loading import BaseModel, base_model_slug, load_base_model, parameter_count
from client_agent.model.tokenizer_digests import tokenizer_digests
from client_agent.model.tokens import TokenizedText
from client_agent.settings import AgentSettings, Dtype, GeneratedScores, Quantization
from client_agent.storage.final_scores import StartScoreStore
from client_agent.storage.prefix_store import PrefixStore
from client_agent.training.data import SiloData, load_data, with_metrics
from client_agent.training.loop import DEFAULT_OPTIONS, TrainingOptions
from client_agent.training.optimiser import require_optimiser
from client_agent.training.packing import require_packable
from client_agent.training.ranks import Leader
from client_agent.training.remarks import remarks_on
from client_agent.training.trainers import OpenedTrainer, open_trainer
from schemas import PROTOCOL_VERSION
from schemas.messages import private_training
from schemas.messages.enrolment import Profile, TokenizerDigests
from schemas.messages.secure_sum import CAPABILITY
from schemas.messages.training import ANCHOR_PULL

_LARGE = 1_000_000_000

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Silo:
    """A silo's model and data, loaded once.

    `quantised_from` is the source of `base` if it is quantised. A quantised model has the slug, adapters and
    packs of its dense model: their functions are nearly equal, so adapters work on both. Their gradients
    differ: the direction of a small model's gradient does not survive 4 bits. `trainer` replaces the own
    training loop, and `ranks` are the other processes of torchrun.
    """

    base: BaseModel
    data: SiloData
    pivot_source: str | None
    _pivot: BaseModel | None = None
    quantised_from: str | None = None
    quantization: Quantization = "none"
    chat_template: str | None = None
    options: TrainingOptions = DEFAULT_OPTIONS
    generated_scores: GeneratedScores = "rounds"
    start_scores: StartScoreStore | None = None
    trainer: OpenedTrainer | None = None
    ranks: Leader | None = None

    def encoded(self, examples: Sequence[Example], max_length: int) -> tuple[TokenizedText, ...]:
        """Tokenise examples for the base model, once for the life of the agent.

        Raises:
            TextTooLong: see `encode_for`.
        """
        return encode_for(self.base, examples, max_length)

    def require_fit(self, max_length: int) -> None:
        """Tokenise all examples, so that what does not fit is refused before the long work of a round.

        Raises:
            TextTooLong, DataInvalid, TokenizerUnfit: see `encode_for`.
        """
        for examples in (self.data.train, self.data.validation, self.data.test):
            self.encoded(examples, max_length)

    def model_named(self, slug: str) -> BaseModel:
        """Return the shared model of a slug: this silo's own, or the model of `pivot_model`.

        It has the dtype of this silo's model. It is quantised as this silo's is only if it is large, since
        its gradients are compared between silos; so a quantised small model is loaded again, dense.

        Raises:
            PivotMissing: neither model has this slug.
        """
        # The direction of a small model's gradient does not survive 4 bits, and silos compare gradients.
        if slug == self.base.slug and (self.quantised_from is None or is_large(self.quantised_from)):
            return self.base
        if self._pivot is None or self._pivot.slug != slug:
            source = self.shared_source(slug) or self.quantised_from
            assert source is not None
            log.info("shared model: loading (%s)", slug)
            self._pivot = None  # free the previous shared model first
            self._pivot = self._load_shared(source)
        return self._pivot

    def shared_source(self, slug: str) -> str | None:
        """Return the source of the shared model of a slug, without loading it; None for this silo's own.

        Raises:
            PivotMissing: neither this silo's model nor that of `pivot_model` has this slug.
        """
        if slug == self.base.slug:
            return None
        source = self.pivot_source
        if self._pivot is not None and self._pivot.slug == slug:
            return source
        if source is None:
            raise PivotMissing(f"the federation shares the model {slug}; set pivot_model to a copy of it")
        source_slug = base_model_slug(source)
        if source_slug != slug:
            raise PivotMissing(
                f"the federation shares the model {slug}, and pivot_model is {source_slug}; "
                "set pivot_model to a copy of the shared model"
            )
        return source

    def _load_shared(self, source: str) -> BaseModel:
        """Load a shared model; it keeps its own chat template, so that silos render their chats alike."""
        dtype = shared_dtype(self.base.model.dtype, self.quantization)
        quantization = self.quantization if is_large(source) else "none"
        try:
            shared = load_base_model(source, device=self.base.device, dtype=dtype, quantization=quantization)
        except ModelTooLarge:
            log.warning(
                "shared model: no room for %s on %s; loading it on the CPU, which is slower",
                source,
                self.base.device,
            )
            torch.cuda.empty_cache()
            shared = load_base_model(
                source, device=torch.device("cpu"), dtype=dtype, quantization=quantization
            )
        # Its own template comes first, so that silos render chats alike.
        if shared.tokenizer.chat_template is None:
            set_template(shared.tokenizer, self.chat_template)
        return shared

    @property
    def profile(self) -> Profile:
        return Profile(
            architecture=self.base.architecture,
            base_model=self.base.slug,
            hidden_size=self.base.hidden_size,
            layers=self.base.layers,
            roles=self.base.roles,
            shapes=self.base.shapes,
            layer_shapes=self.base.layer_shapes,
            agent_version=__version__,
            protocol_version=PROTOCOL_VERSION,
            capabilities=(CAPABILITY, private_training.CAPABILITY, ANCHOR_PULL),
            tokenizer=self.tokenizer,
        )

    @property
    def tokenizer(self) -> TokenizerDigests:
        return tokenizer_digests(self.base.tokenizer, chats=any(example.turns for example in self.data.all))


def is_large(source: str) -> bool:
    """Whether a model has so many parameters that its gradients survive few bits, and its memory matters."""
    return parameter_count(source) >= _LARGE


def shared_dtype(dtype: torch.dtype, quantization: Quantization) -> torch.dtype:
    """Return the dtype of a shared model: the silo's own, but gradients need the range of bfloat16."""
    return torch.bfloat16 if quantization != "none" or dtype == torch.float16 else dtype


def open_silo(settings: AgentSettings) -> Silo:
    """Load model and data of the settings.

    Raises:
        SettingsUnusable: the device does not exist, `chat_template` is no template, or the model or this
            machine does not support `packing` or `optimizer`.
        ModelNotFound, UnknownArchitecture, TokenizerUnfit: see `load_base_model`.
        DataInvalid: see `load_silo_data`.
        TrainerUnusable: see `open_trainer`.
        TokenizerUnfit, DataInvalid: the chat template cannot render the data, which is refused before
            anything long starts; see `remarks_on`.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    device = device_named(settings.device)
    trainer = open_trainer(settings.trainer, settings.trainer_options.model_extra or {})
    # Before the model: a bad row is found within seconds.
    data = load_silo_data(settings)
    source = model_folder(settings.model, settings.folder)
    base = load_own_model(settings, source, device)
    if settings.prefix_cache_mib:
        base.prefix.store = PrefixStore(settings.folder / PREFIXES, settings.prefix_cache_mib << 20)
    options = options_of(settings, base)
    for remark in remarks_on(data, base.tokenizer):
        log.warning("data: %s", remark)
    log.info(
        "silo: %s on %s, %d training, %d validation and %d test examples",
        base.slug,
        device,
        len(data.train),
        len(data.validation),
        len(data.test),
    )
    for sentence in base.parts.frozen.sentences():
        log.info("silo: %s", sentence)
    pivot = settings.pivot_model
    return Silo(
        base,
        data,
        model_folder(pivot, settings.folder) if pivot is not None else None,
        quantised_from=source if settings.quantization != "none" else None,
        quantization=settings.quantization,
        chat_template=settings.chat_template,
        options=options,
        generated_scores=settings.generated_scores,
        start_scores=StartScoreStore(settings.folder),
        trainer=trainer,
    )


def load_own_model(settings: AgentSettings, source: str, device: torch.device) -> BaseModel:
    """Load the base model of the settings from its folder, with the settings' chat template.

    Raises:
        SettingsUnusable: see `set_template`.
        ModelNotFound, UnknownArchitecture, TokenizerUnfit, ModelTooLarge: see `load_base_model`.
    """
    allow_tf32(device)
    base = load_base_model(
        source, device=device, dtype=dtype_of(settings, device), quantization=settings.quantization
    )
    set_template(base.tokenizer, settings.chat_template)
    return base


def options_of(settings: AgentSettings, base: BaseModel) -> TrainingOptions:
    """Return the training options of the settings.

    Raises:
        SettingsUnusable: the model does not support packing, or this machine not the optimiser.
    """
    if settings.packing:
        require_packable(base)
    require_optimiser(settings.optimizer)
    return TrainingOptions(optimizer=settings.optimizer, packing=settings.packing)


def allow_tf32(device: torch.device) -> None:
    """Allow float32 products on a GPU to round their factors to TF32, which is several times faster.

    Adapters multiply in float32; the alignment fits are in float64, which this does not change.
    """
    if device.type == "cuda":
        # Several times faster. Adapters multiply in float32; fits of alignment are in float64, and keep their
        # precision.
        torch.set_float32_matmul_precision("high")


def load_silo_data(settings: AgentSettings) -> SiloData:
    """Load the data of the settings, and log how many rows were skipped.

    Raises:
        DataInvalid: see `load_data` and `with_metrics`.
    """
    rows = RowOptions(
        settings.format,
        settings.columns,
        settings.skip_bad_rows,
        settings.ignore_columns,
        settings.template,
    )
    data = load_data(
        settings.train,
        settings.test,
        validation=settings.validation,
        test_share=settings.test_share,
        validation_share=settings.validation_share,
        rows=rows,
    )
    data = replace(data, test=with_metrics(data.test, settings.metrics))
    if data.skipped:
        log.warning("data: %d rows skipped; the first: %s", len(data.skipped), data.skipped[0])
    return data


def device_named(name: str) -> torch.device:
    """Return the device; `auto` is the GPU if there is one.

    Raises:
        SettingsUnusable: the device does not exist.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        # Only a use shows that a device exists.
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsUnusable(
            f"device {name} is not usable on {platform.node()} ({error}); set device to auto or cpu"
        ) from error
    return device


def dtype_of(settings: AgentSettings, device: torch.device) -> torch.dtype:
    """Return the base model's dtype, which is also the compute dtype of quantised layers."""
    return dtype_named(settings.dtype, device, settings.quantization)


def dtype_named(name: Dtype, device: torch.device, quantization: Quantization) -> torch.dtype:
    """Return the dtype of a base model; `auto` depends on the device and the bits.

    The error of bfloat16 is small beside that of 4 or 8 bits, so only a dense model on a CPU is float32.
    """
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
    # The error of bfloat16 is small beside that of 4 or 8 bits.
    few_bits = quantization != "none"
    return torch.bfloat16 if device.type == "cuda" or few_bits else torch.float32
