"""llama.cpp answers with the exported adapter of a finished `make demo` as `tessera agent generate` does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from client_agent.cli.adapters import adapter_source
from client_agent.export.gguf_lora import write_gguf
from client_agent.model.examples import encode_prompt
from client_agent.model.generation import Decoding, completion
from client_agent.model.stop_tokens import ends_of
from client_agent.settings import read_settings
from client_agent.training.silo import open_silo
from tests.unit.client_agent.export.base_gguf import write_base
from tests.unit.client_agent.export.llama_cpp import llama_cpp

TICKETS, TOKENS = 8, 40


@pytest.mark.system
def test_llama_cpp_answers_as_the_federated_adapter(tmp_path: Path) -> None:
    config = Path(os.environ.get("TESSERA_DEMO", "runs/demo"), "federated", "elmford", "silo.toml")
    if not config.is_file():
        pytest.skip(f"{config} does not exist: run `make demo`, or set TESSERA_DEMO")
    settings = read_settings(config)
    silo = open_silo(settings)
    prompts = [
        encode_prompt(example.prompt, silo.base.tokenizer, chat=bool(example.turns))
        for example in silo.data.test[:: len(silo.data.test) // TICKETS]
    ]
    with adapter_source(settings, None, None, None, None, "kept").attach(silo) as (adapter, _):
        answers = [completion(silo.base, ids, Decoding(TOKENS)).text for ids in prompts]
        factors = adapter.as_lora()
    write_gguf(tmp_path / "adapter.gguf", factors, silo.base, "elmford")
    write_base(tmp_path / "base.gguf", silo.base)
    with llama_cpp(tmp_path / "base.gguf", tmp_path / "adapter.gguf") as model:
        tokens = [model.greedy(ids, TOKENS, ends_of(silo.base.tokenizer)) for ids in prompts]
    assert [silo.base.tokenizer.decode(ids).strip() for ids in tokens] == [text.strip() for text in answers]
    print(*answers, sep="\n")
