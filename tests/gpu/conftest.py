"""Where these tests run, and the models they share: of about 1 and 7 billion random parameters."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.random_llama import SIZES, built, saved
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.settings import Quantization

ONE_BILLION, SEVEN_BILLION = SIZES["1b"], SIZES["7b"]
_HERE = Path(__file__).parent
_SECONDS = 1200  # seven billion random numbers are drawn, and 2.5 GB are written and read


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this folder, and skip it where there is no GPU."""
    missing = pytest.mark.skip(reason="no GPU: torch.cuda.is_available() is False (a CPU build of torch?)")
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(_SECONDS))
            # Drivers and kernels warn of their own accord, differently on every machine.
            item.add_marker(pytest.mark.filterwarnings("default"))
            if not torch.cuda.is_available():
                item.add_marker(missing)


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    """The GPU, with nothing left on it by the test before."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield torch.device("cuda")
    gc.collect()


@pytest.fixture(scope="session")
def one_billion(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Quantization], BaseModel]:
    """Load the model of 1 billion parameters from disk, as an agent does: `one_billion("nf4")`."""
    folder = tmp_path_factory.mktemp("models") / "one-billion"
    if torch.cuda.is_available():
        torch.manual_seed(0)
        saved(ONE_BILLION, folder, device=torch.device("cuda"))

    def load(quantization: Quantization) -> BaseModel:
        return load_base_model(
            str(folder), device=torch.device("cuda"), dtype=torch.bfloat16, quantization=quantization
        )

    return load


@pytest.fixture
def seven_billion(gpu: torch.device) -> BaseModel:
    """The model of 7 billion parameters in 4 bits, which was never written anywhere."""
    torch.manual_seed(0)
    return built(SEVEN_BILLION, device=gpu, dtype=torch.bfloat16, quantization="nf4")
