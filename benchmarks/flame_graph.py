"""Show sampled stacks (`stack_samples`): a table of the largest shares, and flame graphs."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from rich.console import Console

from benchmarks import figures
from benchmarks.stack_samples import Stacks

_PIXELS, _LINE_PIXELS = 1200, 16
_OWN = ("coordinator/", "schemas/")
_LARGEST = 5
_COLOURS = {True: "#e8a36b", False: "#c9d3dc"}


def show(console: Console, title: str, stacks: Stacks) -> None:
    """Print the largest shares; each stack counts for its innermost function of the coordinator.

    A stack without such a function counts for the library of its innermost one.
    """
    shares: dict[str, float] = {}
    for stack, seconds in stacks.items():
        shares[_owner(stack)] = shares.get(_owner(stack), 0.0) + seconds
    total = sum(shares.values())
    largest = sorted(shares.items(), key=lambda share: -share[1])[:_LARGEST]
    rows = [[name, seconds, f"{seconds / total:.0%}"] for name, seconds in largest]
    figures.show(console, f"{title}: {total:.3g} s in all", ["function", "s", "share"], rows)


def draw(file: Path, stacks: Stacks) -> None:
    """Write a flame graph as SVG: the outermost frames at the top, widths in proportion to seconds."""
    root = _Node()
    for stack, seconds in stacks.items():
        node = root
        node.seconds += seconds
        for frame in stack:
            node = node.inner.setdefault(frame, _Node())
            node.seconds += seconds
    boxes: list[str] = []
    deepest = _boxes(boxes, root, 0.0, 0, _PIXELS / max(root.seconds, 1e-9))
    size = f'width="{_PIXELS}" height="{(deepest + 1) * _LINE_PIXELS}"'
    style = "<style>text{font:10px sans-serif;pointer-events:none}</style>"
    file.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(boxes)}</svg>\n', "utf-8"
    )


@dataclass(slots=True)
class _Node:
    seconds: float = 0.0
    inner: dict[str, _Node] = field(default_factory=dict)


def _owner(stack: tuple[str, ...]) -> str:
    owner = next((frame for frame in reversed(stack) if frame.startswith(_OWN)), None)
    return owner or stack[-1].partition(":")[0].partition("/")[0]


def _boxes(boxes: list[str], node: _Node, x: float, depth: int, scale: float) -> int:
    """Append the boxes of a node's inner frames that are wide enough; return the largest depth."""
    deepest = depth
    for frame, inner in sorted(node.inner.items()):
        width = inner.seconds * scale
        if width >= 1:
            place = f'x="{x:.1f}" y="{depth * _LINE_PIXELS}" width="{width:.1f}"'
            colour = _COLOURS[frame.startswith(_OWN)]
            label = escape(frame[: int(width / 6)])
            boxes.append(
                f"<g><title>{escape(frame)} {inner.seconds:.3f} s</title>"
                f'<rect {place} height="{_LINE_PIXELS - 1}" fill="{colour}"/>'
                f'<text x="{x + 2:.1f}" y="{depth * _LINE_PIXELS + 11}">{label}</text></g>'
            )
            deepest = max(deepest, _boxes(boxes, inner, x, depth + 1, scale))
        x += width
    return deepest
