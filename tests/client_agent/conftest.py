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
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from client_agent.adapters.base import require_bare
from client_agent.identity.membership import enrol, read_key
from client_agent.model.examples import Example
from client_agent.model.loading import BaseModel, load_base_model
from client_agent.preflight import Finding, findings
from client_agent.rounds.participant import Participant
from client_agent.settings import read_settings
from client_agent.training.silo import Silo, open_silo
from client_agent.transport.client import CoordinatorApi
from schemas.messages.rounds import FinishedBrief, RoundBrief
from tests.scene.agent_processes import EXAMPLES, MODELS
from tests.scene.coordinator import Served, start
from tests.scene.waiting import wait_until

ARCHITECTURES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "gpt_neox",
    "gpt2",  # with fused layers
)
CHARACTERS = string.ascii_lowercase + string.digits + " =<>/|_\n"
GPT2_SAYS = {"n_inner": 48, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}
SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]
HELD_OUT = 12
"""Test examples of a silo: rounds score all of them before and after their training."""


def character_tokenizer(pairs: bool = False) -> PreTrainedTokenizerFast:
    """One token per character, or with `pairs` one per two letters where there are two."""
    pieces = list(CHARACTERS)
    if pairs:
        pieces += [a + b for a in string.ascii_lowercase for b in string.ascii_lowercase]
    ids = {token: i for i, token in enumerate([*SPECIAL, *pieces])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    pattern = r"[a-z]{2}|[\s\S]" if pairs else r"[\s\S]"
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", ids["<bos>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


def random_model(model_type: str, tokenizer: PreTrainedTokenizerFast, seed: int, **changes: Any) -> Any:
    width = changes.pop("hidden_size", 32)
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": width // 4,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.1,
        **(GPT2_SAYS if model_type == "gpt2" else {}),
        **changes,
    }
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
    with torch.no_grad():  # norms and biases of trained models are not all ones and zeros
        for name, parameter in model.named_parameters():
            if "norm" in name or ".ln_" in name or name.endswith("bias"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def save_model(
    folder: Path, model_type: str = "llama", *, pairs: bool = False, seed: int = 0, **changes: Any
) -> str:
    tokenizer = character_tokenizer(pairs)
    random_model(model_type, tokenizer, seed, **changes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


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


def config(folder: Path, **changes: str) -> Path:
    """Write a silo.toml, with the first test examples of a silo of the examples beside it."""
    data = EXAMPLES / "silos" / "aster"
    test = folder / "test.jsonl"
    test.write_text("".join((data / "test.jsonl").read_text().splitlines(keepends=True)[:HELD_OUT]))
    options = {
        "url": "http://127.0.0.1:1",
        "folder": "state",
        "model": str(MODELS["S"]),
        "train": str(data / "train.jsonl"),
        "test": str(test),
    } | changes
    file = folder / "silo.toml"
    lines = [f"{name} = '{value}'\n" for name, value in options.items()]
    file.write_text("".join([*lines, "threads = 1\n", "validation_share = 0.0\n"]))
    return file


@pytest.fixture(scope="session")
def loaded_silo(tmp_path_factory: pytest.TempPathFactory) -> Silo:
    folder = tmp_path_factory.mktemp("silo")
    return open_silo(read_settings(config(folder)))


@pytest.fixture
def silo(loaded_silo: Silo) -> Iterator[Silo]:
    """The silo of all tests, which they leave without an adapter."""
    yield loaded_silo
    require_bare(loaded_silo.base)


@pytest.fixture(scope="session")
def agents_coordinator(fresh_database: Callable[[str], str]) -> Iterator[Served]:
    served = start(fresh_database("sqlite"), tick_seconds=0.05, retry_seconds=0.05)
    yield served
    served.stop()


@pytest.fixture
def served(agents_coordinator: Served) -> Iterator[Served]:
    """The coordinator of all tests: they make federations of their own, which end with them."""
    before = agents_coordinator.with_open_rounds()
    yield agents_coordinator
    for federation_id in agents_coordinator.with_open_rounds() - before:
        agents_coordinator.admin.post(f"/v1/federations/{federation_id}/finish")


@pytest.fixture
def tmp_path(databases: Path) -> Iterator[Path]:
    """A folder in memory, where there is enough: agents wait for the disk at every file that they keep."""
    with tempfile.TemporaryDirectory(dir=databases, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def enrolled(
    served: Served,
    federation_id: str,
    silo: Silo,
    folder: Path,
    stack: ExitStack,
    *,
    name: str = "aster",
    keep_rounds: int = 2,
    transport: httpx.BaseTransport | None = None,
) -> Participant:
    """Enrol a silo, and connect it until the stack ends."""

    def connect(key: Ed25519PrivateKey | None, **options: Any) -> CoordinatorApi:
        api = CoordinatorApi(served.url, key=key, deadline_seconds=20, sleep=lambda _: None, **options)
        return stack.enter_context(api)

    token = served.enrolment_token(federation_id, name)
    member = enrol(connect(None), folder, token=token, name=name, profile=silo.profile)
    api = connect(read_key(folder), server_key=member.server_key, transport=transport)
    return Participant.of(silo, api, member, folder, keep_rounds=keep_rounds)


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
        who = participant(federation_id, transport)
        served.start_federation(federation_id)
        return who

    return start


def next_brief(who: Participant) -> RoundBrief:
    """Wait for a round in which a silo may take part."""

    def find() -> RoundBrief | None:
        brief = who.session.api.current_round(who.session.federation_id)
        assert not isinstance(brief, FinishedBrief)
        return brief if isinstance(brief, RoundBrief) else None

    return wait_until(find)


def checked(file: Path, plan: Path | None = None) -> dict[str, Finding]:
    """Check a silo; give what is found by subject."""
    return {finding.subject: finding for finding in findings(file, plan)}


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Commands that run in this process change what it gives new files; other tests start from the same."""
    before = os.umask(0o022)
    yield
    os.umask(before)
