"""Show examples of every task template as a model reads them.

    python -m examples.show_templates FOLDER --model MODEL [--examples 3]

FOLDER holds a folder for each data set, named as its task template, with `train.jsonl` and `test.jsonl`
as on the hub. Each is shown by `tessera agent data`: what is learnt, counts, lengths and duplicates.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from client_agent.cli.data import show_data
from client_agent.data.templates import template_names


def main() -> None:
    parser = argparse.ArgumentParser(description="Show examples of every task template.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", required=True, help="A model's folder, for its tokenizer.")
    parser.add_argument("--examples", type=int, default=3)
    options = parser.parse_args()
    folders = [options.folder.resolve() / name for name in template_names()]
    present = [folder for folder in folders if (folder / "train.jsonl").is_file()]
    if not present:
        raise SystemExit(f"{options.folder} has no folder named as a task template with a train.jsonl")
    with tempfile.TemporaryDirectory() as temporary:
        for folder in present:
            print(f"\n===== {folder.name}", flush=True)
            config = write_silo(Path(temporary), folder, Path(options.model).resolve())
            show_data(config=config, count=options.examples)


def write_silo(into: Path, data: Path, model: Path) -> Path:
    """Write the silo.toml of a data set, and return its path."""
    settings = {
        "url": "http://127.0.0.1:8000",  # never called
        "folder": str(into / "silo"),
        "model": str(model),
        "train": str(data / "train.jsonl"),
        "test": str(data / "test.jsonl"),
        "format": data.name,
    }
    file = into / f"{data.name}.toml"
    # A JSON string is a TOML string.
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()), "utf-8")
    return file


if __name__ == "__main__":
    main()
