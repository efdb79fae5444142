"""A silo's resources for the lifetime of an agent: base model, shared small model and examples."""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from client_agent import __version__
from client_agent.data.load import RowOptions
from client_agent.errors import ModelTooLarge, PivotMissing, SettingsUnusable
from client_agent.model.examples import Example, encode_for, rendered
from client_agent.model.gguf import model_folder
from client_agent.model.loading import BaseModel, base_model_slug, load_base_model
from client_agent.model.tokens import Encoded
from client_agent.settings import AgentSettings
from client_agent.training.data import SiloData, load_data
from schemas import PROTOCOL_VERSION
from schemas.messages.enrolment import Profile

_PROBED_EXAMPLES = 64

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Silo:
    """A silo's model and data, loaded once; `few_bits_of` is the source of `base` if it is quantised.

    A quantised model has the slug, adapters and packs of its dense model: their functions are nearly
    equal, so adapters work on both. Their gradients differ: the direction of a small model's gradient does
    not survive 4 bits.
    """

    base: BaseModel
    data: SiloData
    pivot_source: str | None
    _pivot: BaseModel | None = None
    few_bits_of: str | None = None

    def model_named(self, slug: str) -> BaseModel:
        """Return the dense base model of a slug: this silo's, or the model of `pivot_model`.

        Its results are compared between silos, so the weights of a quantised model are loaded again, dense.

        Raises:
            PivotMissing: neither model has this slug.
        """
        if slug == self.base.slug and self.few_bits_of is None:
            return self.base
        if self._pivot is None or self._pivot.slug != slug:
            source = self.few_bits_of if slug == self.base.slug else self.pivot_source
            if source is None:
                raise PivotMissing(f"the federation shares the model {slug}; set pivot_model to a copy of it")
            source_slug = base_model_slug(source)
            if source_slug != slug:
                raise PivotMissing(
                    f"the federation shares the model {slug}, and pivot_model is {source_slug}; "
                    "set pivot_model to a copy of the shared model"
                )
            log.info("shared model: loading (%s)", slug)
            self._pivot = None  # free the previous shared model first
            self._pivot = _load_shared(source, self.base.device)
        return self._pivot

    def encoded(self, examples: Sequence[Example], max_length: int) -> Sequence[Encoded]:
        """Tokenise examples for the base model.

        Raises:
            TextTooLong: an example exceeds the base model's context.
        """
        return encode_for(self.base, examples, max_length)

    @property
    def profile(self) -> Profile:
        return Profile(
            architecture=self.base.architecture,
            base_model=self.base.slug,
            hidden_size=self.base.hidden_size,
            layers=self.base.layers,
            roles=tuple(self.base.shapes),
            shapes=dict(self.base.shapes),
            agent_version=__version__,
            protocol_version=PROTOCOL_VERSION,
        )


def _load_shared(source: str, device: torch.device) -> BaseModel:
    try:
        return load_base_model(source, device=device)
    except ModelTooLarge:
        log.warning(
            "shared model: no room for %s on %s; loading it on the CPU, which is slower", source, device
        )
        torch.cuda.empty_cache()
        return load_base_model(source, device=torch.device("cpu"))


def open_silo(settings: AgentSettings) -> Silo:
    """Load model and data of the settings.

    Raises:
        SettingsUnusable: the device does not exist.
        ModelNotFound, UnknownArchitecture, TokenizerUnfit: see `load_base_model`.
        DataInvalid: see `load_data`.
        TokenizerUnfit: the data are chats, and the tokenizer has no chat template.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    device = device_named(settings.device)
    data = load_silo_data(settings)
    source = model_folder(settings.model, settings.folder)
    base = load_base_model(
        source,
        device=device,
        dtype=dtype_of(settings, device),
        quantization=settings.quantization,
    )
    _require_renderable(data, base)
    log.info(
        "silo: %s on %s, %d training, %d validation and %d test examples",
        *(base.slug, device, len(data.train), len(data.validation), len(data.test)),
    )
    pivot = settings.pivot_model
    return Silo(
        base,
        data,
        model_folder(pivot, settings.folder) if pivot is not None else None,
        few_bits_of=source if settings.quantization != "none" else None,
    )


def _require_renderable(data: SiloData, base: BaseModel) -> None:
    """Refuse chats that the tokenizer has no template for, before anything long starts.

    Raises:
        TokenizerUnfit: see `rendered`.
    """
    for examples in (data.train, data.validation, data.test):
        for example in examples[:_PROBED_EXAMPLES]:
            rendered(example, base.tokenizer)


def load_silo_data(settings: AgentSettings) -> SiloData:
    """Load the data of the settings, and log how many rows were skipped.

    Raises:
        DataInvalid: see `load_data`.
    """
    rows = RowOptions(settings.format, settings.columns, settings.skip_bad_rows)
    data = load_data(
        settings.train,
        settings.test,
        validation=settings.validation,
        test_share=settings.test_share,
        validation_share=settings.validation_share,
        rows=rows,
    )
    if settings.metrics is not None:
        data = replace(data, test=tuple(replace(e, metrics=settings.metrics) for e in data.test))
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
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsUnusable(
            f"device {name} is not usable on {platform.node()} ({error}); set device to auto or cpu"
        ) from error
    return device


def dtype_of(settings: AgentSettings, device: torch.device) -> torch.dtype:
    """Return the base model's dtype, which is also the compute dtype of quantised layers.

    The error of bfloat16 is small beside that of 4 or 8 bits, so only a dense model on a CPU is float32.
    """
    if settings.dtype == "auto":
        few_bits = settings.quantization != "none"
        return torch.bfloat16 if device.type == "cuda" or few_bits else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[settings.dtype]
