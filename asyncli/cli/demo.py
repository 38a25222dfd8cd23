"""``asyncli demo``: the main job with one command."""

from __future__ import annotations

from typing import Any

import click

from asyncli.cli.options import output_options, outputs_of, plan_from, plan_options
from asyncli.plan import Layer

CONNECTIONS = "100k"
_SCHEMES = {"nchan": "ws", "mosquitto": "mqtt"}


@click.command(name="demo", context_settings={"max_content_width": 110})
@plan_options(CONNECTIONS)
@click.option(
    "--server",
    type=click.Choice(["nginx", "builtin", "nchan", "mosquitto"]),
    help="Which server; nchan is of WebSockets, mosquitto of MQTT.  [default: nginx where there is one]",
)
@click.option("--tls", is_flag=True, help="Over TLS, with a certificate made for this start.")
@output_options
def command(server: str | None, tls: bool, **values: Any) -> int:
    """Start a private nginx, hold 100,000 connections on it, and print what one more costs.

    It needs no configuration and leaves nothing behind. Without an nginx with stub_status it takes the built-in server, and
    every number says so.
    """
    # A plan needs a URL; the lab's is known once it runs.
    placeholder = f"{_SCHEMES.get(server or '', 'http')}{'s' if tls else ''}://127.0.0.1:1"
    defaults = Layer("demo: {key}", {"urls": [placeholder], "connections": CONNECTIONS, "keepalive": 60, "hold": "60s"})
    to = outputs_of(values)
    plan = plan_from(values, (), defaults)
    from asyncli import lab
    from asyncli.cli.run import run_soak

    return run_soak(plan, to, lab=lab.choose(server, connections=plan.connections, keepalive_s=plan.keepalive_s, tls=tls))
