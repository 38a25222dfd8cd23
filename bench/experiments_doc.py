"""Makes docs/experiments.md from the records in docs/records: a table of the claims, then each
experiment's tables and evidence.

    python bench/experiments_doc.py                   write the page from the existing records
    python bench/experiments_doc.py --run all         run every experiment, save the records, write
    the page (46 min, root)
    python bench/experiments_doc.py --run holding --run pipelining        run these, and keep the
    other records

A record is saved as soon as its experiment has ended. --quick: quick runs, only with --into FOLDER.
"""

from __future__ import annotations

import argparse
import lzma
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from asyncli.experiments import NAMES, Experiment, command_of, load, plan_of
from asyncli.experiments.context import concluded
from asyncli.experiments.record import VERDICTS, Conclusions, FigureTable, Record, record_of
from asyncli.model.units import format_duration
from asyncli.report.experiment_report import cell, heading, server_labels
from asyncli.report.jsonout import to_json

DOCS = Path(__file__).resolve().parent.parent / "docs"
#: The atlas has its own page.
SHOWN = [name for name in NAMES if name != "atlas"]
# The tables after the first one that are shown: those that support the claims.
ALSO = (
    "Per request",
    "Memory of the server's processes",
    "10,000 answers",
    "On the wire",
    "How many connections each server could",
    "Cost of one connection",
    "Both clients, and their sum",
)
_FACTS = ("kernel", "machine", "cpu_model", "cpus", "memory_bytes", "server")
HEAD = """# The classic comparisons, run again

asyncli repeats five public write-ups on long, short and pipelined connections, each by one command on real servers in interleaved rounds, and judges
their claims. Two experiments are asyncli's own: what a held connection costs each server, and what happens when a cluster loses a client host.

The write-ups, four of them in Chinese, with translated titles:
["nginx easily manages 100,000 long connections, on CentOS 6.5 with 2 GB of memory"](http://blog.chinaunix.net/xmlrpc.php?r=blog/article&uid=190176&id=4234854),
a blog at ChinaUnix, where asyncli comes from;
["Building a fast web: long connections of web servers"](https://blog.csdn.net/cutesource/article/details/5570369) by cutesource;
["nginx proxy keepalive"](https://blog.timoq.com/2022/03/20/nginx-proxy-keepalive/) by timoq;
["Very fast pipelined HTTP requests: practice, principle, implementation"](https://www.cnblogs.com/lulianqi/archive/2018/01/01.html) by lulianqi;
and a comparison of six Linux server models, whose title and author we do not know. Their figures are below ours, as they print them; rows without
them are ours alone.

Our figures are medians of the rounds, with the least and the greatest in brackets. They are from one machine that ran client and server, a source's from
another: compare ratios, not figures. Each command writes `report.html` with all tables and charts. Run them as root on a quiet host: memory is that of the
server's own control group, or of the whole host if none can be made.

`python bench/experiments_doc.py` makes this page from the records of these runs in `docs/records`.

"""


def stripped(record: Record) -> Record:
    """The record without what the page does not need: chart series, conclusions (they are
    recomputed) and the host's name.
    """
    rounds = [{key: value for key, value in one.items() if key != "pss"} for one in record.rounds]
    facts = {key: value for key, value in record.environment.items() if key in _FACTS}
    return msgspec.structs.replace(
        record, rounds=rounds, conclusions=Conclusions(), environment=facts
    )  # type: ignore[arg-type]


def keep(record: Record, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = to_json(stripped(record))
    (folder / f"{record.experiment}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


def measured(name: str, quick: bool) -> Record | None:
    """Run an experiment; its record, or None with a message on stderr if it failed."""
    with tempfile.TemporaryDirectory(prefix="asyncli-doc-") as folder:
        out = Path(folder, name)
        argv = [
            sys.executable,
            "-m",
            "asyncli",
            "experiment",
            name,
            "--out",
            str(out),
            *(["--quick"] if quick else []),
        ]
        status = subprocess.run(argv, check=False).returncode
        if status != 0:
            print(f"{name}: ended with {status}; its record is not kept", file=sys.stderr)
            return None
        return record_of((out / "record.json").read_bytes())


def table(one: FigureTable) -> list[str]:
    columns = [
        column for column in one.columns if any(row.values.get(column.key) for row in one.rows)
    ]
    lines = [
        "| |" + "".join(f" {heading(column.label, column.unit)} |" for column in columns),
        "|---" * (len(columns) + 1) + "|",
    ]
    for row in one.rows:
        cells = []
        for column in columns:
            middle, span = cell(row, column.key, column.unit)
            cells.append(f"{middle} ({span})" if span else middle)
        lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
        if row.source:
            lines.append(
                "| *the source* | "
                + " | ".join(str(row.source.get(column.key, "")) for column in columns)
                + " |"
            )
    return lines


def conclusions(record: Record) -> tuple[Experiment, str, Conclusions]:
    """The experiment, its title, and its conclusions by the current rules, which may be stricter
    than when it was measured.
    """
    experiment = load(record.experiment)
    plan = plan_of(experiment, record.quick, record.plan)
    return (
        experiment,
        experiment.title_and_question(plan)[0],
        concluded(experiment, plan, record.rounds),
    )


def claims(records: list[Record], *, ours: bool) -> Iterator[str]:
    """A row for each claim of the write-ups, or of what asyncli predicts."""
    for record in records:
        experiment, title, found = conclusions(record)
        link = "#" + re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for one in found.claims:
            if ours is not bool(experiment.write_up):
                source = "" if ours else f" {experiment.write_up} |"
                yield (
                    f"| [{one.claim.removesuffix('.')}]({link}) |{source} {one.verdict} | "
                    f"{one.figure or '–'} |"
                )


def section(record: Record) -> list[str]:
    experiment, title, found = conclusions(record)
    plan = plan_of(experiment, record.quick, record.plan)
    rounds = len({one["round"] for one in record.rounds})
    facts = record.environment
    lines = [
        f"## {title}",
        "",
        f"    {command_of(experiment, plan, record.quick)}",
        "",
        experiment.title_and_question(plan)[1],
        "",
        f"{server_labels(record)}; Linux {facts.get('kernel')}, {facts.get('cpus')} CPUs; "
        f"{rounds} round{'s' if rounds > 1 else ''}, {format_duration(record.duration_s)}. "
        f"Source: {experiment.cited}.",
        "",
    ]
    for one in [
        *found.tables[:1],
        *(one for one in found.tables[1:] if one.title.startswith(ALSO)),
    ]:
        lines += [
            f"**{one.title}**",
            "",
            *table(one),
            "",
            *([one.caption, ""] if one.caption else []),
        ]
    lines += [
        f"- **{one.verdict}**: {one.claim.removesuffix('.')}: {one.why}" for one in found.claims
    ]
    lines += [f"- ({one.evidence})" for one in record.findings if one.severity != "info"]
    return [*lines, ""]


def page(folder: Path) -> str:
    """The page made from the records in ``folder``."""
    there = [folder / f"{name}.json.xz" for name in SHOWN]
    records = [record_of(lzma.decompress(one.read_bytes())) for one in there if one.exists()]
    lines = [
        "## The claims",
        "",
        "| claim | source | verdict | figure |",
        "|---|---|---|---|",
        *claims(records, ours=False),
        "",
    ]
    lines += [f"{VERDICTS[0].upper()}{VERDICTS[1:]}", ""]
    lines += [
        "## asyncli's own predictions",
        "",
        "Claims of asyncli's own experiments, without a source.",
        "",
    ]
    lines += ["| claim | verdict | figure |", "|---|---|---|", *claims(records, ours=True), ""]
    return (
        HEAD
        + "\n".join([*lines, *(line for record in records for line in section(record))]).rstrip()
        + "\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run",
        action="append",
        default=[],
        choices=["all", *SHOWN],
        metavar="NAME",
        help="run this experiment",
    )
    parser.add_argument("--quick", action="store_true", help="quick runs; only with --into")
    parser.add_argument(
        "--into", type=Path, default=DOCS, metavar="FOLDER", help="write here instead of docs"
    )
    chosen = parser.parse_args()
    if chosen.quick and chosen.into == DOCS:
        parser.error(
            "--quick: quick runs are not precise enough for docs; name a folder with --into"
        )
    records, failed = chosen.into / "records", False
    for name in SHOWN if "all" in chosen.run else chosen.run:
        record = measured(name, chosen.quick)
        failed |= record is None
        if record is not None:
            keep(record, records)
    (chosen.into / "experiments.md").write_text(page(records), encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
