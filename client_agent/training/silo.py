"""What an agent holds as long as it runs: its base model, the shared small model, its examples."""

from __future__ import annotations

import logging
import platform
from dataclasses import dataclass

import torch

from client_agent import __version__
from client_agent.errors import ModelTooLarge, PivotMissing, SettingsUnusable
from client_agent.model.loading import BaseModel, base_model_slug, load_base_model
from client_agent.settings import AgentSettings
from client_agent.training.data import SiloData, load_data
from schemas import PROTOCOL_VERSION
from schemas.messages.enrolment import Profile

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Silo:
    """A silo's model and data, loaded once; `few_bits_of` is where `base` is from when it is quantised.

    A quantised model keeps its slug, and adapters and packs of that slug: its function is nearly the same, so
    that what was trained on it works on the dense model and the other way round. A gradient's direction is
    not: in 4 bits that of a small model has little to do with the dense one's.
    """

    base: BaseModel
    data: SiloData
    pivot_source: str | None
    _pivot: BaseModel | None = None
    few_bits_of: str | None = None

    def model_named(self, slug: str) -> BaseModel:
        """Give the dense base model with exactly these weights: our own, or the one `pivot_model` points at.

        What is computed with it is compared between silos, so that a quantised model of our own will not do:
        its weights are loaded once more.

        Raises:
            PivotMissing: neither is it.
        """
        if slug == self.base.slug and self.few_bits_of is None:
            return self.base
        if self._pivot is None or self._pivot.slug != slug:
            source = self.few_bits_of if slug == self.base.slug else self.pivot_source
            if source is None:
                raise PivotMissing(f"the federation shares the model {slug}: set pivot_model to a copy of it")
            found = base_model_slug(source)
            if found != slug:
                raise PivotMissing(
                    f"the federation shares the model {slug}, and pivot_model is {found}: other weights"
                )
            log.info("loading the shared model %s", slug)
            self._pivot = None  # two that are shared need not be there at once
            self._pivot = _loaded(source, self.base.device)
        return self._pivot

    @property
    def profile(self) -> Profile:
        """What the coordinator is told about this silo's model."""
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


def _loaded(source: str, device: torch.device) -> BaseModel:
    """Load a shared model beside our own, or where there is room: dense it may take eight times as much."""
    try:
        return load_base_model(source, device=device)
    except ModelTooLarge:
        log.warning(
            "%s has no room for %s beside our own model: it goes to the CPU, and takes longer", device, source
        )
        torch.cuda.empty_cache()
        return load_base_model(source, device=torch.device("cpu"))


def open_silo(settings: AgentSettings) -> Silo:
    """Load model and data as the settings say.

    Raises:
        SettingsUnusable: the device does not exist.
        ModelNotFound, UnknownArchitecture, TokenizerUnfit, DataInvalid: see there.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    device = device_named(settings.device)
    data = load_data(settings.train, settings.test, test_share=settings.test_share)
    base = load_base_model(
        settings.model,
        device=device,
        dtype=dtype_of(settings, device),
        quantization=settings.quantization,
    )
    log.info(
        "%s on %s, %d examples to train on, %d held out", base.slug, device, len(data.train), len(data.test)
    )
    few_bits_of = settings.model if settings.quantization != "none" else None
    return Silo(base, data, settings.pivot_model, few_bits_of=few_bits_of)


def device_named(name: str) -> torch.device:
    """Choose the device; auto is the GPU where there is one.

    Raises:
        SettingsUnusable: it does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsUnusable(f"device {name} is not usable on {platform.node()}: {error}") from error
    return device


def dtype_of(settings: AgentSettings, device: torch.device) -> torch.dtype:
    """Choose the base model's type, which is also the one that a quantised model's layers compute in.

    Beside the error of 4 or 8 bits that of bfloat16 is small, so that only a dense model on a CPU gets more.
    """
    if settings.dtype == "auto":
        few_bits = settings.quantization != "none"
        return torch.bfloat16 if device.type == "cuda" or few_bits else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[settings.dtype]
