"""A report as Python programs and notebooks show it."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from studies.report import summary
from studies.report.tables import show

_WIDTH = 110
_FONT = "Menlo, 'DejaVu Sans Mono', Consolas, monospace"
_CODE = f'<pre style="line-height: normal; font-family: {_FONT}">{{code}}</pre>'


class Report(summary.Report):
    """A comparison. `print(report)` prints its tables, and a notebook shows them.

    All its figures are in `report.model_dump()`, and in report.json of the output folder.
    """

    @classmethod
    def of(cls, figures: summary.Report) -> Report:
        return cls.model_construct(**{name: getattr(figures, name) for name in type(figures).model_fields})

    @property
    def losses(self) -> dict[str, float]:
        """The mean test loss of each method over founders and seeds, in nats per answer token."""
        return {method.method: method.loss.mean.mean for method in self.methods}

    def table(self, width: int = 110) -> str:
        """Return the tables of `tessera compare` as text, with at most `width` characters per line."""
        written = StringIO()
        show(self, Console(file=written, width=width, color_system=None))
        return written.getvalue()

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        methods = ", ".join(f"{name} {loss:.3f}" for name, loss in self.losses.items())
        return f"<Report of {self.study}: mean loss of {methods}; {len(self.missing)} runs missing>"

    def _repr_html_(self) -> str:
        console = Console(file=StringIO(), width=_WIDTH, record=True)
        show(self, console)
        return console.export_html(inline_styles=True, code_format=_CODE)
