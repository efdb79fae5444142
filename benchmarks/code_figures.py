"""Figures of the source code: loose files, layers, pronouns as names, docstrings, strategies opened by name.

    python -m benchmarks.code_figures [ROOT]

ROOT is another checkout to compare with, by default this one.
"""

from __future__ import annotations

import ast
import configparser
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

HERE = Path(__file__).parent.parent
PACKAGES = ("coordinator", "client_agent", "schemas", "studies")
PRONOUNS = frozenset(
    """one ones said told found made kept given seen wanted known who whom whose asked held taken gone meant
    own other others theirs ours mine some each rest which what here there those these them""".split()  # noqa: SIM905
)
"""Names that do not say what they hold."""
VAGUE_OPENINGS = frozenset({"Give", "Say", "Tell", "Let", "Have"})
QUESTIONS = frozenset({"Which", "How", "What", "Who", "Where", "Whom", "Whose", "Does", "Is", "Are"})
CAPABILITIES = frozenset(
    """Combining Rescaling RanksDiffer Folding PartTravels MoreTravels Particular
    LearnsImportance""".split()  # noqa: SIM905
)
"""Protocols by which capabilities of strategies were once asked for."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Binding:
    """A name that a file binds: a variable, a parameter, an attribute of a class, a function or a class."""

    file: Path
    line: int
    name: str


@dataclass(frozen=True, slots=True)
class FunctionDocstring:
    """The first word of a function's docstring."""

    file: Path
    line: int
    first_word: str


def sources(root: Path) -> Iterator[Path]:
    """Yield the product's source files."""
    for package in PACKAGES:
        yield from sorted((root / package).rglob("*.py"))


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def bindings(file: Path) -> Iterator[Binding]:
    """Yield every name that a file binds, imports excepted."""
    for node in ast.walk(parsed(file)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield Binding(file, node.lineno, name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield Binding(file, node.lineno, node.name)


def functions(file: Path) -> list[Function]:
    return [node for node in ast.walk(parsed(file)) if isinstance(node, Function)]


def function_docstrings(file: Path) -> Iterator[FunctionDocstring]:
    for node in functions(file):
        if docstring := ast.get_docstring(node):
            yield FunctionDocstring(file, node.lineno, docstring.split()[0].strip(",.:"))


def lines_before_definitions(file: Path) -> int:
    """Count the lines before a file's first function, class or constant; all lines where it has none."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
    for node in parsed(file).body:
        if isinstance(node, definitions):
            decorators = [] if isinstance(node, ast.Assign | ast.AnnAssign) else node.decorator_list
            return min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1
    return lines_of(file)


def lines_of(file: Path) -> int:
    return len(file.read_text("utf-8").splitlines())


def is_a_capability(node: ast.AST) -> bool:
    """Whether a call asks `isinstance` of a strategy's capability."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, classes]):
            return any(isinstance(part, ast.Name) and part.id in CAPABILITIES for part in ast.walk(classes))
    return False


def opens_by_name(node: ast.AST) -> bool:
    """Whether a call makes a strategy from the name in a plan."""
    match node:
        case ast.Call(func=ast.Name(id="make" | "load_strategy"), args=[ast.Attribute(attr="name"), *_]):
            return True
        case ast.Call(
            func=ast.Attribute(attr="make" | "load_strategy"), args=[ast.Attribute(attr="name"), *_]
        ):
            return True
    return False


def layer_names(root: Path) -> int:
    """Count the names in the layers of both sides."""
    contracts = configparser.ConfigParser()
    contracts.read(root / ".importlinter")
    return sum(
        len(contracts[section]["layers"].replace("|", " ").replace(":", " ").split())
        for section in contracts.sections()
        if contracts[section].get("type") == "layers"
    )


def loose_files(root: Path) -> int:
    """Count the modules at the roots of both sides."""
    return sum(
        file.name != "__init__.py"
        for package in ("coordinator", "client_agent")
        for file in (root / package).glob("*.py")
    )


def figures(root: Path) -> dict[str, str]:
    """Return the figures of a checkout, by their description."""
    files = list(sources(root))
    names = [binding.name.strip("_") for file in files for binding in bindings(file)]
    docstrings = [docstring for file in files for docstring in function_docstrings(file)]
    nodes = list(chain.from_iterable(ast.walk(parsed(file)) for file in files))
    first_words = [docstring.first_word for docstring in docstrings]
    return {
        "loose files at the roots of both sides": str(loose_files(root)),
        "names in the layer contracts": str(layer_names(root)),
        "bindings that are pronouns": f"{sum(name in PRONOUNS for name in names) / len(names):.2%}",
        "docstrings that begin with Give, Say, Tell, Let, Have": str(
            sum(word in VAGUE_OPENINGS for word in first_words)
        ),
        "functions with a docstring": f"{len(docstrings) / sum(len(functions(file)) for file in files):.0%}",
        "lines before a file's first definition": (
            f"{sum(map(lines_before_definitions, files)) / sum(map(lines_of, files)):.1%}"
        ),
        "calls that make a strategy by its name in a plan": str(sum(map(opens_by_name, nodes))),
        "isinstance on capabilities of strategies": str(sum(map(is_a_capability, nodes))),
    }


if __name__ == "__main__":
    for description, figure in figures(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE).items():
        print(f"{figure:>8}  {description}")
