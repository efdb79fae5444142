"""The commands that serve an export, for its model card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from shlex import quote

from client_agent.adapters.base import LoraFactors
from client_agent.export.artefact import Artefact
from client_agent.export.vllm_rules import served_rank

TEMPLATE = "chat_template.jinja"
_URL = "http://localhost:8000/v1"


def commands(artefact: Artefact, factors: Mapping[str, LoraFactors]) -> list[str]:
    """Return three commands, to be run in the folder of the export."""
    name, base = quote(artefact.name), quote(artefact.base_name)
    template = f" --chat-template {TEMPLATE}" if artefact.chat else ""
    match artefact.target:
        case "peft":
            load = (
                "from peft import PeftModel as P; "
                "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; "
                f"b = {artefact.base_name!r}; "
                "m, t = P.from_pretrained(M.from_pretrained(b), '.'), T.from_pretrained(b); "
                "print(t.decode(m.generate(**t('PROMPT', return_tensors='pt'), max_new_tokens=64)[0]))"
            )
            return [
                "pip install peft transformers torch",
                f'python -c "{load}"',
                "tessera agent export --config silo.toml --for vllm --out SERVED   "
                "# in the silo: the same adapter for a server",
            ]
        case "vllm":
            rank = served_rank(max(len(lora.A) for lora in factors.values()))
            return [
                "pip install vllm",
                f"vllm serve {base} --enable-lora --max-lora-rank {rank} --lora-modules {name}=.{template}",
                _request(artefact),
            ]
        case "gguf":
            return [
                f"ollama create {name} -f Modelfile",
                f"ollama run {name}",
                f"llama-server -m {quote(artefact.base_file)} --lora adapter.gguf   # without Ollama",
            ]
        case "merged":
            return [
                "pip install vllm",
                f"vllm serve . --served-model-name {name}",
                _request(artefact),
            ]


def routed_commands(artefact: Artefact) -> list[str]:
    """Return two commands that load an X-LoRA in the folder of the export: its config has relative paths."""
    load = (
        "from peft import PeftModel as P, XLoraConfig as C; "
        "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; c = C.from_pretrained('.'); "
        f"m = P.from_pretrained(M.from_pretrained({artefact.base_name!r}, use_cache=False), '.', config=c); "
        f"t = T.from_pretrained({artefact.base_name!r}); "
        "print(t.decode(m.generate(**t('PROMPT', return_tensors='pt'), max_new_tokens=64)[0]))"
    )
    return ["pip install peft transformers torch", f'python -c "{load}"']


def _request(artefact: Artefact) -> str:
    path = "chat/completions" if artefact.chat else "completions"
    prompt = {"messages": [{"role": "user", "content": "PROMPT"}]} if artefact.chat else {"prompt": "PROMPT"}
    body = json.dumps({"model": artefact.name, **prompt, "max_tokens": 64})
    return f"curl {_URL}/{path} -H 'Content-Type: application/json' -d {quote(body)}"
