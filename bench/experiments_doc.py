"""docs/experiments.md from the records of experiments: the first table of each (and of what is held, the last), its source's figures, and the claims judged.

    python bench/experiments_doc.py RECORD.json... > docs/experiments.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from asyncli.errors import PlanError
from asyncli.experiments import command_of, load, plan_of
from asyncli.experiments.context import concluded
from asyncli.experiments.record import VERDICTS, FigureTable, record_of
from asyncli.report.experiment_report import amount, cell, heading, server_labels
from asyncli.units import format_duration

# Of the tables after the first one, those without which the claims say little.
ALSO = ("The most that each would hold", "What one connection takes", "The clients, and both as one")
HEAD = """# The classic comparisons, run again

Five write-ups about connections are often quoted, of which the last one, of two clients, is asyncli's origin, and two were missing:
what a held connection costs in each server, and what becomes of a fleet that loses a host. Each is one command of asyncli on real servers, in rounds that take turns; here stand its first table with the source's figures below ours, and
what holds still of what the source claims. The page of each (`report.html`) has all tables and pictures. Figures are medians of the
rounds, with the least and the most in brackets; they are of one machine, with client and server on it, and the source's of another:
compare ratios, not figures.

"""


def table(one: FigureTable) -> list[str]:
    columns = [column for column in one.columns if any(row.values.get(column.key) for row in one.rows)]
    lines = ["| |" + "".join(f" {heading(column.label, column.unit)} |" for column in columns), "|---" * (len(columns) + 1) + "|"]
    for row in one.rows:
        cells = []
        for column in columns:
            middle, span = cell(row, column.key, column.unit)
            cells.append(f"{middle} ({span})" if span else middle)
        lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
        if row.source:
            theirs = [amount(row.source[column.key], column.unit) if column.key in row.source else "" for column in columns]
            lines.append("| *the source* | " + " | ".join(theirs) + " |")
    return lines


def section(path: str) -> list[str]:
    try:
        record = record_of(Path(path).read_bytes())
        experiment = load(record.experiment)
        plan = plan_of(experiment, False, record.plan)
    except (OSError, ValueError, PlanError) as error:
        sys.exit(f"{path}: {error}")
    # By today's rules: they may be stricter than those of the day on which it was measured.
    found = concluded(experiment, plan, record.rounds)
    if not found.tables:
        sys.exit(f"{path}: nothing of it can be concluded from")
    rounds = len({one["round"] for one in record.rounds})
    facts = record.environment
    title, question = experiment.said(plan)
    lines = [
        f"## {title}", "", f"    {command_of(experiment, plan, record.quick)}", "", question, "",
        f"{server_labels(record)}; Linux {facts.get('kernel')}, {facts.get('cpus')} CPUs; {rounds} round{'s' if rounds > 1 else ''}, "
        f"{format_duration(record.duration_s)}. Source: {record.source}.", "",
    ]  # fmt: skip
    for one in [found.tables[0], *(one for one in found.tables[1:] if one.title.startswith(ALSO))]:
        lines += [f"**{one.title}**", "", *table(one), "", *([one.caption, ""] if one.caption else [])]
    lines += [f"- **{one.verdict}**: {one.claim} {one.why}" for one in found.claims]
    lines += [f"- ({one.evidence})" for one in record.findings if one.severity != "info"]
    return [*lines, ""]


if __name__ == "__main__":
    print(HEAD + VERDICTS + "\n")
    print("\n".join(line for path in sys.argv[1:] for line in section(path)).rstrip())
