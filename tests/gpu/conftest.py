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
_NOTHING_RAN = pytest.StashKey[bool]()
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


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail when these tests alone were asked for and none could run: that is no pass."""
    if exitstatus == pytest.ExitCode.OK and _nothing_could_run(session.items):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        session.config.stash[_NOTHING_RAN] = True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report skipped tests of GPUs."""
    if terminalreporter.config.stash.get(_NOTHING_RAN, False):
        terminalreporter.section("no GPU", red=True)
        terminalreporter.line(
            "None of the GPU tests ran, and nothing is known: they need an NVIDIA GPU, its driver and a CUDA "
            "build of torch, and torch.cuda.is_available() is False."
        )


def _nothing_could_run(items: list[pytest.Item]) -> bool:
    these_alone = all(_HERE in item.path.parents for item in items)
    return bool(items) and these_alone and not torch.cuda.is_available()


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
