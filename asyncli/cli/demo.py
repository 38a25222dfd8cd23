"""``asyncli demo``: the main job with one command."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from asyncli.cli.options import plan_from, plan_options
from asyncli.plan import Layer

CONNECTIONS = "100k"


@click.command(name="demo", context_settings={"max_content_width": 110})
@plan_options(CONNECTIONS)
@click.option("--server", type=click.Choice(["nginx", "builtin"]), help="Which server.  [default: nginx where there is one]")
@click.option("--out", metavar="RUN.db", help="The run file; never overwritten.  [default: asyncli-<time>.db here]")
@click.option("--json", "json_file", metavar="FILE", help="Write the summary as JSON; '-' for standard output.")
@click.option("--html", "html_file", metavar="FILE", help="Write the report as one HTML page that opens offline; '-' likewise.")
@click.option("--junit", "junit_file", metavar="FILE", help="Write verdict and limits as JUnit XML; '-' likewise.")
@click.option("--log-json", is_flag=True, help="While it runs, a JSON object a line for each event.")
@click.option("--on-finish", metavar="COMMAND", help="Run at the end, verdict in $ASYNCLI_VERDICT, summary on standard input.")
@click.option("-v", "--verbose", is_flag=True, help="Print all of the report: rules, notes, every limit.")
@click.option("--quiet", is_flag=True, help="Print errors and the one-line verdict, nothing else.")
def command(
    server: str | None,
    out: str | None,
    json_file: str | None,
    html_file: str | None,
    junit_file: str | None,
    log_json: bool,
    on_finish: str | None,
    verbose: bool,
    quiet: bool,
    **values: Any,
) -> int:
    """Start an nginx of our own, hold 100,000 connections on it, and print what one more costs.

    Needs no configuration and leaves nothing behind. Where no nginx with stub_status is installed, the built-in server
    takes its place, and every number says so.
    """
    # The lab's address is known only once it runs; a URL must stand there all the same for the plan to be whole.
    placeholder = "http://127.0.0.1:1/"
    defaults = Layer("demo: {key}", {"urls": [placeholder], "connections": CONNECTIONS, "keepalive": 60, "hold": "60s"})
    plan = plan_from(values, (), defaults)
    from asyncli import lab
    from asyncli.cli.run import Files, run_soak
    from asyncli.lab import LabServer
    from asyncli.plan import Plan

    def aim(plan: Plan, chosen: LabServer) -> Plan:
        return msgspec.structs.replace(plan, urls=(chosen.url,), status_url=chosen.status_url, server_pid=chosen.pid)

    chosen = lab.choose(server, connections=plan.connections, keepalive_s=plan.keepalive_s)
    files = Files(out, json_file, html_file, junit_file)
    return run_soak(plan, files, verbose=verbose, quiet=quiet, log_json=log_json, on_finish=on_finish, lab=chosen, aim=aim)
