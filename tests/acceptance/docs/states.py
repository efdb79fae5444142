"""Initial states of guides: a coordinator, a federation, data, enrolled and trained silos."""

from __future__ import annotations

import json
import shutil

from tests.acceptance.docs.blocks import ROOT
from tests.acceptance.docs.reader import Reader

_PLAN = {
    "name": "clinics",
    "strategy": {"name": "fedmosaic"},
    "adapter": {"kind": "lora", "rank": 4},
    "rounds": {"total": 1, "min_clients": 1},
    "training": {"learning_rate": 0.01, "steps": 2, "batch_size": 4, "max_length": 64},
    "scores": {"examples": 8},
    "signature": {"probe_examples": 8},
}
_MODELS = ROOT / "examples" / "models"
_POOL = ROOT / "examples" / "studies" / "data" / "cipher" / "train.jsonl"


def prepare(reader: Reader, state: str) -> None:
    """Prepare a state that an instruction `with` names."""
    kind, *names = state.split()
    match kind:
        case "data":
            _data(reader, names[0])
        case "long-context":
            _long_context(reader, names[0])
        case "coordinator":
            coordinator(reader)
        case "federation":
            _federation(reader)
        case "silo":
            _silo(reader, names[0])
        case "trained":
            _silo(reader, names[0])
            reader.shell(f"tessera federation start $FED; tessera agent run --config {names[0]}/silo.toml")
        case "silos-of-two-models":
            coordinator(reader)
            for name, model in zip(names, ("tiny-s", "tiny-l"), strict=True):
                _data(reader, name)
                _settings(reader, name, model)
        case _:
            raise ValueError(f"there is no state {state!r}")


def coordinator(reader: Reader) -> None:
    reader.start("tessera serve", ("Tessera listens on http://127.0.0.1:8000",))
    reader.shell("export TESSERA_TOKEN=$(cat tessera.db-admin-token)")


def _long_context(reader: Reader, variable: str) -> None:
    """Set a variable to a copy of a tiny model that reads 512 tokens instead of 64."""
    copy = shutil.copytree(_MODELS / "tiny-s", reader.folder.parent / "tiny-512")
    file = copy / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 512}))
    reader.shell(f"export {variable}={copy}")


def _federation(reader: Reader) -> None:
    coordinator(reader)
    (reader.folder / "plan.json").write_text(json.dumps(_PLAN))
    printed = reader.shell("tessera federation create --plan plan.json --json").stdout
    reader.shell(f"export FED={json.loads(printed)['id']}")


def _data(reader: Reader, name: str) -> None:
    folder = reader.folder / name
    folder.mkdir()
    if name == "large":
        lines = _POOL.read_text().splitlines(keepends=True)[:100]
        (folder / "train.jsonl").write_text("".join(lines))
    else:
        shutil.copy(ROOT / "examples" / "silos" / "aster" / "train.jsonl", folder)


def _settings(reader: Reader, name: str, model: str) -> None:
    silo = f"--train {name}/train.jsonl --out {name}/silo.toml"
    reader.shell(f"tessera agent init --model {_MODELS / model} {silo}")


def _silo(reader: Reader, name: str) -> None:
    _federation(reader)
    _data(reader, name)
    _settings(reader, name, "tiny-s")
    token = json.loads(reader.shell(f"tessera enrolment create $FED {name} --json").stdout)["token"]
    reader.shell(f"echo {token} | tessera agent enrol --config {name}/silo.toml --name {name} --token -")
