"""Tiny random models of every supported architecture, and tokenizers that disagree about tokens."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import copy
import json
import random
import string
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from client_agent.adapters.base import require_bare
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.rounds.participant import Participant
from client_agent.settings import read_settings
from client_agent.training.silo import Silo, open_silo
from tests.scene.agents import enrolled
from tests.scene.coordinator import Served, coordinator_fixture
from tests.scene.silo_config import config
from tests.scene.tiny_models import ARCHITECTURES, save_model


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Write a tiny random model to a folder of its own and give the folder."""

    def save(model_type: str = "llama", *, name: str = "tiny", **changes: Any) -> str:
        return save_model(tmp_path_factory.mktemp("models") / name, model_type, **changes)

    return save


@pytest.fixture(scope="session")
def tiny(saved_model: Callable[..., str]) -> Callable[..., BaseModel]:
    """Load a tiny random model: a copy, since tests put adapters into it."""
    loaded: dict[str, BaseModel] = {}

    def load(model_type: str = "llama", *, dtype: torch.dtype = torch.float32, **changes: Any) -> BaseModel:
        name = json.dumps([model_type, str(dtype), changes], sort_keys=True, default=repr)
        if name not in loaded:
            folder = saved_model(model_type, **changes)
            loaded[name] = load_base_model(folder, device=torch.device("cpu"), dtype=dtype)
        return copy.deepcopy(loaded[name])

    return load


@pytest.fixture(params=ARCHITECTURES)
def each_architecture(request: pytest.FixtureRequest, tiny: Callable[..., BaseModel]) -> BaseModel:
    return tiny(request.param)


@pytest.fixture
def examples() -> list[Example]:
    """Strings to be written backwards, of different lengths."""
    rng = random.Random(0)
    texts = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))) for _ in range(24)]
    return [Example(f"rev {text}=", text[::-1]) for text in texts]


@pytest.fixture(scope="session")
def loaded_silo(tmp_path_factory: pytest.TempPathFactory) -> Silo:
    folder = tmp_path_factory.mktemp("silo")
    return open_silo(read_settings(config(folder)))


@pytest.fixture
def silo(loaded_silo: Silo) -> Iterator[Silo]:
    """The silo of all tests; tests remove their adapters from it."""
    yield loaded_silo
    require_bare(loaded_silo.base)


agents_coordinator = coordinator_fixture("sqlite", scope="session", tick_seconds=0.05, retry_seconds=0.05)


@pytest.fixture
def served(agents_coordinator: Served) -> Iterator[Served]:
    """The coordinator of all tests; each test creates its own federations, which end with it."""
    before = agents_coordinator.with_open_rounds()
    yield agents_coordinator
    for federation_id in agents_coordinator.with_open_rounds() - before:
        agents_coordinator.admin.post(f"/v1/federations/{federation_id}/finish")


@pytest.fixture
def tmp_path(databases: Path) -> Iterator[Path]:
    """A folder in memory, where there is enough: agents wait for the disk at every file that they keep."""
    with tempfile.TemporaryDirectory(dir=databases, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def participant(served: Served, silo: Silo, tmp_path: Path) -> Iterator[Callable[..., Participant]]:
    """Enrol the silo in a federation: `participant(federation_id)`, perhaps with a transport of its own."""
    with ExitStack() as stack:

        def make(federation_id: str, transport: httpx.BaseTransport | None = None) -> Participant:
            return enrolled(served, federation_id, silo, tmp_path, stack, transport=transport)

        yield make


@pytest.fixture
def started(served: Served, participant: Callable[..., Participant]) -> Callable[..., Participant]:
    """Start a federation of the silo alone: `started(**plan)`, perhaps with a transport."""

    def start(transport: httpx.BaseTransport | None = None, **plan: Any) -> Participant:
        federation_id = served.federation(**plan)
        agent = participant(federation_id, transport)
        served.start_federation(federation_id)
        return agent

    return start


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Restore the umask, which commands in this process change."""
    before = os.umask(0o022)
    yield
    os.umask(before)
