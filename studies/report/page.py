"""The HTML page of a comparison, with its charts inline. Needs the extra `report`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import jinja2

from client_agent.storage.files import write_durably
from studies.report.charts import as_svg, draw
from studies.report.importance_charts import draw_heat_maps, draw_measures
from studies.report.pictures import figures_of
from studies.report.summary import Report
from studies.report.tables import (
    about_budgets,
    amounts,
    budget,
    compared_figure,
    control,
    difference,
    explain,
    figure,
    judged,
    losing,
    passing,
    rates,
    remarks,
    searches,
    seeds_of,
    tried,
)
from studies.report.tasks import rows_of


def write_page(report: Report, file: Path) -> None:
    """Write the page; it loads no external resource."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    # Names of silos and methods come from the study's file, so they are escaped.
    template = jinja2.Environment(loader=loader, autoescape=True).get_template("page.html.j2")
    page = template.render(
        report=report,
        baselines=report.baselines,
        tasks=list(rows_of([method.main_tasks for method in report.methods], by_client=True)),
        groups=list(dict.fromkeys(group for method in report.methods for group in method.loss.groups)),
        lone=any(method.lone for method in report.methods),
        transfers=any(method.main_transfer for method in report.methods),
        pictures=draw(report) | as_svg(figures_of(report)),
        banks=[(m.method, m.bank) for m in report.methods if m.bank is not None],
        measures=draw_measures(report),
        heat_maps=draw_heat_maps(report),
        seeds={m.method: m.importance.seed for m in report.methods if m.importance is not None},
        figure=figure,
        about_budgets=about_budgets(),
        budget=budget,
        compared=partial(compared_figure, between="; "),
        tried=tried,
        difference=difference,
        judged=judged,
        losing=losing,
        control=control,
        rates=rates,
        explain=explain,
        passing=passing,
        searches=searches(report),
        seeds_of=seeds_of,
        amounts=amounts(report),
        remarks=remarks(report),
    )
    write_durably(file, page.encode())
