"""``asyncli demo``: the main job with one command."""

from __future__ import annotations

from typing import Any

import click

from asyncli.app.report_memory import require_memory
from asyncli.cli.command import Command, environment_lines
from asyncli.cli.options import output_options, outputs_of, plan_from, plan_options
from asyncli.model.plan import Layer, Plan

CONNECTIONS = "100k"
# Of 100,000 connections with a keepalive of 60 s: a tenth of what a CPU can do
# (preflight/rate_checks.py).
_MOST_BEATS_PER_S = 6_450


def keepalive_s(plan: Plan) -> float:
    """A minute; less in a short hold, so that each connection has a heartbeat in its first half, if
    the CPUs allow.
    """
    # The mean pause is half of 1 + keepalive/2 seconds.
    return min(60.0, max(2.0, plan.hold_s or 60.0, 4 * plan.connections / _MOST_BEATS_PER_S - 2))


@click.command(name="demo", cls=Command, context_settings={"max_content_width": 110})
@plan_options(CONNECTIONS)
@click.option(
    "--server",
    metavar="NAME",
    help="The server to start; 'asyncli lab --help' lists them.  [default: nginx]",
)
@click.option("--tls", is_flag=True, help="Use TLS, with a new certificate.")
@output_options
def command(server: str | None, tls: bool, **values: Any) -> int:
    """Start a private nginx, hold 100,000 connections on it, and print what one more costs.

    It needs no configuration and leaves nothing behind. Without an nginx that has stub_status it
    starts the built-in server, and says so with every number. Other servers hold fewer where they
    are one process. Without -k a hold of less than a minute gets a keepalive as short as itself, so
    that each connection has a heartbeat in it, if the CPUs allow.
    """
    require_memory(page=values["html_file"] is not None)
    from asyncli import lab
    from asyncli.lab.base import url_of

    # A plan needs a URL, but the lab's is known only once it runs.
    kind = lab.kind_of(server or "nginx")
    scheme = "http" if values.get("protocol") else kind.scheme
    url = url_of(scheme, "127.0.0.1:1", tls)
    asked = {"urls": [url], "connections": kind.default_size, "hold": "60s"}
    if values.get("protocol"):
        # Nothing is published to them.
        asked["silence"] = "forever"
    to = outputs_of(values)
    asked |= kind.plan_keys
    plan = plan_from(values, (), Layer("demo: {key}", asked))
    plan = plan_from(values, (), Layer("demo: {key}", {**asked, "keepalive": keepalive_s(plan)}))
    proxied = {"proxy_protocol": True} if plan.proxy_protocol else {}
    from asyncli.cli.soak_terminal import run_soak

    lab_server = lab.choose(
        server,
        connections=plan.connections,
        keepalive_s=plan.keepalive_s,
        tls=tls,
        http2=plan.http2,
        deflate=plan.ws_deflate,
        scheme=scheme,
        **proxied,
    )
    return run_soak(plan, to, lab=lab_server, preface=environment_lines(quiet=to.quiet))
