"""The page of packages and layers, from `.importlinter` and the first sentence of each package."""

from __future__ import annotations

import ast
import configparser
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from docs.generate.markdown import code, page_of, sentence, table

_ROOT: Final = Path(__file__).parents[2]
_INTRODUCTION: Final = """\
The packages of Tessera by layer: a package imports only packages of lower layers. Packages of one layer do
not import each other. `make lint` checks these rules with import-linter.
[Architecture](../explanation/architecture.md) describes what happens between the packages."""
_SIDES: Final = {
    "coordinator": "The coordinator, top to bottom",
    "client_agent": "The agent, top to bottom",
}
_SHARED: Final = "What both sides share"
_TOGETHER: Final = "What runs both sides"
_CONTRACTS: Final = "Further rules"


def page() -> str:
    contracts = _contracts()
    layers = {
        contract["containers"]: contract["layers"]
        for contract in contracts.values()
        if contract["type"] == "layers"
    }
    sections: list[str] = []
    for package, title in _SIDES.items():
        rows = [
            (str(number) if name == names[0] else "", code(name), sentence(_summary(f"{package}.{name}")))
            for number, names in enumerate(_layers(layers[package]), start=1)
            for name in names
        ]
        sections += [f"## {title}", table(("layer", "package", "content"), rows)]
    for title, package in ((_SHARED, "schemas"), (_TOGETHER, "studies")):
        modules = [package, *(f"{package}.{name}" for name in _children(package))]
        described = [(code(module), sentence(_summary(module))) for module in modules]
        sections += [f"## {title}", table(("package", "content"), described)]
    names = [contract["name"] for contract in contracts.values() if contract["type"] != "layers"]
    sections += [f"## {_CONTRACTS}", "\n".join(f"- {name}." for name in names)]
    return page_of("Packages", ".importlinter and docstrings", _INTRODUCTION, *sections)


def _contracts() -> dict[str, Mapping[str, str]]:
    parser = configparser.ConfigParser()
    parser.read(_ROOT / ".importlinter")
    return {
        name: {key: value.strip() for key, value in parser[name].items()}
        for name in parser.sections()
        if name.startswith("importlinter:contract:")
    }


def _layers(text: str) -> Iterator[list[str]]:
    """Yield the packages of each layer, top to bottom."""
    for line in text.splitlines():
        yield [name.strip() for name in line.split("|")]


def _children(package: str) -> list[str]:
    return sorted(path.parent.name for path in (_ROOT / package).glob("*/__init__.py"))


def _summary(module: str) -> str:
    """Return the first paragraph of the docstring of a package or module."""
    path = _ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).rstrip(".")
