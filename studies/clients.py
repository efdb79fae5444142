"""Base models shared by the clients of a worker: each is loaded once, for all clients and runs."""

from __future__ import annotations

import torch

from client_agent.model.loading import BaseModel, load_base_model
from client_agent.settings import Dtype, Quantization
from client_agent.storage.prefix_store import PrefixStore
from client_agent.training.data import SiloData
from client_agent.training.silo import Silo, allow_tf32, dtype_named
from studies.study import Study
from studies.study_fields import StudySilo


class SharedModels:
    """Base models by folder or hub id, dtype and bits. Clients use them in turn, each with its own adapter.

    `prefixes` stores the output of the layers below the first adapter, for all clients and methods.
    """

    def __init__(self, prefixes: PrefixStore | None = None) -> None:
        self._prefixes = prefixes
        self._loaded: dict[tuple[str, torch.dtype, Quantization], BaseModel] = {}
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        # As an agent does, so that a study trains with the same rounding.
        allow_tf32(self._device)

    @property
    def loaded(self) -> list[BaseModel]:
        return list(self._loaded.values())

    def at(self, source: str, dtype: Dtype = "auto", quantization: Quantization = "none") -> BaseModel:
        """Return the base model of a folder or hub id; load it at the first call.

        Raises:
            ModelNotFound, UnknownArchitecture, TokenizerUnfit: see `load_base_model`.
        """
        loaded_in = dtype_named(dtype, self._device, quantization)
        key = source, loaded_in, quantization
        if key not in self._loaded:
            base = load_base_model(source, device=self._device, dtype=loaded_in, quantization=quantization)
            base.prefix.store = self._prefixes
            self._loaded[key] = base
        return self._loaded[key]


def build_silo(study: Study, silo: StudySilo, data: SiloData, models: SharedModels) -> Silo:
    """Build a silo with its data, its base model and the shared pivot, which is dense."""
    return Silo(
        models.at(silo.model, silo.dtype, silo.quantization),
        data,
        study.pivot_model,
        models.at(study.pivot_model, pivot_dtype(silo)) if study.pivot_model is not None else None,
        quantised_from=silo.model if silo.quantization != "none" else None,
        quantization=silo.quantization,
    )


def pivot_dtype(silo: StudySilo) -> Dtype:
    """Return the dtype of a silo's pivot: the silo's own, but gradients need the range of bfloat16."""
    return "bfloat16" if silo.dtype == "float16" else silo.dtype


def build_silos(study: Study, data: dict[str, SiloData], models: SharedModels) -> dict[str, Silo]:
    """Build every silo of a study."""
    return {silo.name: build_silo(study, silo, data[silo.name], models) for silo in study.silo}
