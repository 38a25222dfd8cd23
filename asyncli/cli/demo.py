"""``asyncli demo``: the main job with one command."""

from __future__ import annotations

from typing import Any

import click

from asyncli.cli.options import output_options, outputs_of, plan_from, plan_options
from asyncli.errors import PlanError
from asyncli.plan import Layer

CONNECTIONS = "100k"


@click.command(name="demo", context_settings={"max_content_width": 110})
@plan_options(CONNECTIONS)
@click.option(
    "--server",
    type=click.Choice(["nginx", "builtin", "nchan", "mosquitto", "redis", "memcached"]),
    help="Which; nchan is of WebSockets and event streams, mosquitto of MQTT, redis and memcached of TCP.  [default: nginx]",
)
@click.option("--tls", is_flag=True, help="Over TLS, with a certificate made for this start.")
@output_options
def command(server: str | None, tls: bool, **values: Any) -> int:
    """Start a private nginx, hold 100,000 connections on it, and print what one more costs.

    It needs no configuration and leaves nothing behind. Without an nginx with stub_status it takes the built-in server, and
    every number says so.
    """
    from asyncli import lab

    # A plan needs a URL; the lab's is known once it runs.
    kind = lab.kind_of(server or "nginx")
    scheme = "http" if values.get("protocol") else kind.scheme
    asked = {"urls": [lab.url_of(scheme, "127.0.0.1:1", tls)], "connections": CONNECTIONS, "keepalive": 60, "hold": "60s"}
    to = outputs_of(values)
    plan = plan_from(values, (), Layer("demo: {key}", {**asked, **kind.plan_keys}))
    more = {name: True for name in ("http2", "proxy_protocol") if getattr(plan, name)}
    if more and server not in (None, "nginx"):
        flag = next(iter(more)).replace("_", "-")
        raise PlanError(f"--{flag}: of the lab's servers nginx alone speaks it; leave --server out")
    from asyncli.cli.run import run_soak

    made = lab.choose(
        "nginx" if more else server, connections=plan.connections, keepalive_s=plan.keepalive_s, tls=tls, scheme=scheme, **more
    )
    return run_soak(plan, to, lab=made)
