"""``asyncli lab NAME``: a local server to test against."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from asyncli.cli.command import Command
from asyncli.cli.options import parsed, seconds_of
from asyncli.lab import NAMES
from asyncli.model.errors import PlanError
from asyncli.model.units import parse_count, parse_memory

if TYPE_CHECKING:
    from asyncli.lab.base import LabServer

_NAMES = "\n".join(f"  {name:15} {known.description}" for name, known in NAMES.items())
_HELP = f"""Start a local server, print its address, and run it until Ctrl-C.

\b
NAME is
{_NAMES}

All but builtin and asyncio must be installed. The other textbook models need a C compiler,
go-http, gorilla and gobwas need Go, jvm needs a JDK and Maven. The system's own configuration is
neither read nor changed. Where the server reports its own metrics (caddy, envoy, node-http,
go-http, gorilla, gobwas, jvm; node-ws with prom-client), the URL of that page is printed too.
"""


@click.command(name="lab", cls=Command, no_args_is_help=True, help=_HELP)
@click.argument("name", metavar="NAME")
@click.option(
    "-c",
    "--connections",
    metavar="N",
    help="How many it must hold.  [default: 100k for nginx, nchan and builtin, 9k for "
    "haproxy-proxy, 256 for apache-prefork, 16 for the textbook models, else 10k]",
)
@click.option(
    "-k",
    "--keepalive",
    default="3600",
    metavar="TIME",
    show_default=True,
    help="Longest --keepalive of the clients.",
)
@click.option(
    "--port",
    default="0",
    metavar="PORT",
    show_default=True,
    help="Port, 0: any. The page of status or of metrics has the next one.",
)
@click.option("--tls", is_flag=True, help="Use TLS, with a new certificate, if the server can.")
@click.option("--http2", is_flag=True, help="Speak HTTP/2, if the server can.")
@click.option(
    "--ws-deflate", is_flag=True, help="Accept permessage-deflate (WebSocket), if the server can."
)
@click.option(
    "--heap", metavar="SIZE", help="Most memory of the heap, if the server has one (jvm: 256M)."
)
@click.option(
    "--pad",
    metavar="BYTES",
    help="Memory that each connection takes in addition, to try limits on (nginx only; a multiple "
    "of 16).",
)
def command(
    name: str,
    connections: str | None,
    keepalive: str,
    port: str,
    tls: bool,
    http2: bool,
    ws_deflate: bool,
    heap: str | None,
    pad: str | None,
) -> int:
    options: dict[str, Any] = {}
    if connections is not None:
        options["connections"] = parsed("--connections", parse_count, connections)
    if heap is not None:
        options["heap_bytes"] = int(parsed("--heap", lambda text: parse_memory(str(text)), heap))
    if pad is not None:
        options["pad_bytes"] = parsed("--pad", parse_count, pad)
    seconds = seconds_of("--keepalive", keepalive)
    if not port.isdigit() or int(port) > 65535:
        raise PlanError(f"--port: {port!r} is not a port; write a number from 0 to 65535")
    import asyncio

    options |= {"keepalive_s": seconds, "port": int(port)}
    options |= {"tls": tls, "http2": http2, "deflate": ws_deflate}
    asyncio.run(_serve(name, options))
    return 0


async def _serve(name: str, options: dict[str, Any]) -> None:
    import asyncio

    from asyncli import lab
    from asyncli.cli.signals import stop_signals

    stopped = asyncio.Event()
    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with lab.choose(name, **options) as server:
        workers = "1 worker" if server.workers == 1 else f"{server.workers} workers"
        click.echo(f"{server.label} with {workers}, pid {server.pid}; Ctrl-C ends it")
        click.echo(f"  target  {server.url}")
        if server.also:
            click.echo(f"  also    {server.url.replace(server.scheme, server.also, 1)}")
        if server.status_url is not None:
            click.echo(f"  status  {server.status_url}")
        if server.metrics_url is not None:
            click.echo(f"  metrics {server.metrics_url}")
        if server.authority is not None:
            click.echo(f"  ca      {server.authority}")
        command_line = ["asyncli soak", f"-c {server.connections}", *_flags(server), server.url]
        click.echo(f"  try     {' '.join(command_line)}")
        await stopped.wait()


# As bench/collected.py measures.
_RAMP_OF_METRICS = "67/s"


def _flags(server: LabServer) -> Iterator[str]:
    """The flags of a soak of this server. A value may contain shell characters."""
    if server.status_url is not None:
        yield f"--status-url {shlex.quote(server.status_url)}"
    if server.metrics_url is not None:
        yield f"--server-metrics {shlex.quote(server.metrics_url)}"
        # A faster ramp leaves a heap no time to be collected on the way.
        yield f"--ramp {_RAMP_OF_METRICS}"
    if server.authority is not None:
        yield f"--ca {shlex.quote(str(server.authority))}"
    for key, value in server.plan_keys.items():
        yield f"--{key} {shlex.quote(value)}"
    if server.http2:
        yield "--http2"
    if server.deflate:
        yield "--ws-deflate"
