"""Hold what the clients of a worker share: each base model is loaded once, for all clients and all runs."""

from __future__ import annotations

import torch

from client_agent.model.loading import BaseModel, load_base_model
from client_agent.simulation.study import Study
from client_agent.training.data import SiloData
from client_agent.training.silo import Silo


class SharedModels:
    """Base models by their place. Clients take turns on them; an adapter is around one only meanwhile."""

    def __init__(self) -> None:
        self._loaded: dict[str, BaseModel] = {}
        on_gpu = torch.cuda.is_available()
        self._device = torch.device("cuda" if on_gpu else "cpu")
        self._dtype = torch.bfloat16 if on_gpu else torch.float32

    def at(self, source: str) -> BaseModel:
        """Give the base model of a folder or hub id.

        Raises:
            ModelNotFound, UnknownArchitecture, TokenizerUnfit: see `load_base_model`.
        """
        if source not in self._loaded:
            self._loaded[source] = load_base_model(source, device=self._device, dtype=self._dtype)
        return self._loaded[source]


def silos_of(study: Study, data: dict[str, SiloData], models: SharedModels) -> dict[str, Silo]:
    """Give every silo its data, its base model and the shared pivot."""
    pivot = models.at(study.pivot_model) if study.pivot_model is not None else None
    return {
        silo.name: Silo(models.at(silo.model), data[silo.name], study.pivot_model, pivot)
        for silo in study.silo
    }
