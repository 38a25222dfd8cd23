"""``asyncli check``."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from asyncli.cli.command import Command, environment_lines
from asyncli.cli.options import cluster_of, cluster_options, plan_from, plan_options
from asyncli.model.exit_status import REFUSED, exit_status
from asyncli.model.records import NOTHING_LISTENS


@click.command(name="check", cls=Command, context_settings={"max_content_width": 110})
@click.argument("urls", nargs=-1, metavar="URL...")
@plan_options()
@cluster_options
@click.option(
    "--probe",
    is_flag=True,
    help="Connect once, do the handshakes, send a heartbeat, and show the answers.",
)
def command(urls: tuple[str, ...], probe: bool, **values: Any) -> int:
    """Check every limit of this host and of the server against the plan, and print the command that
    fixes each shortfall.

    Without --probe it sends nothing to the target, but it tries the status page of an nginx on this
    host. Exit status: 2 if a soak would be refused or the probe fails, 3 if nothing listens at a
    URL on this host, else 0.
    """
    plan = plan_from(values, urls)
    import asyncio

    from rich.console import Console

    from asyncli.app.baseline_runs import read_baseline_runs
    from asyncli.app.check import check
    from asyncli.cli.outputs import printing
    from asyncli.findings.run import baseline_runs_left_out
    from asyncli.model.units import format_many
    from asyncli.preflight import refusals
    from asyncli.report.live_thresholds import too_short
    from asyncli.report.run_setup import print_checks

    def say(line: str) -> None:
        click.echo(f"asyncli: {line}", err=True)

    for line in environment_lines():
        say(line)
    cluster = cluster_of(values)
    baseline = read_baseline_runs(plan)
    if baseline.runs:
        names = ", ".join(run.name for run in baseline.runs)
        say(f"{format_many(len(baseline.runs), 'baseline run')} to compare with: {names}")
    examined = asyncio.run(check(plan, cluster, say, connects=probe, beats=probe))
    findings = [*examined.findings, *too_short(plan)]
    if baseline.left_out:
        findings.append(baseline_runs_left_out(baseline.left_out, len(baseline.runs)))
    tls = None if examined.tls is None else msgspec.to_builtins(examined.tls)
    with printing():
        print_checks(
            plan,
            examined.spread,
            examined.checks,
            findings,
            Console(highlight=False),
            tls=tls,
            steps=examined.steps,
            server=examined.server.document(),
        )
    if refusals(examined.checks):
        return REFUSED
    if any(finding.code == NOTHING_LISTENS for finding in findings):
        return exit_status("untested")
    return exit_status("passed")
