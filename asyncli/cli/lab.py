"""``asyncli lab NAME``: a local server to test against."""

from __future__ import annotations

from typing import Any

import click

from asyncli.cli.options import parsed, seconds_of
from asyncli.lab import NAMES
from asyncli.model.errors import PlanError
from asyncli.model.units import parse_count

_NAMES = "\n".join(f"  {name:15} {known.description}" for name, known in NAMES.items())
_HELP = f"""Start a local server, print its address, and run it until Ctrl-C.

\b
NAME is
{_NAMES}

All but builtin and asyncio must be installed. The other textbook models need a C compiler, gorilla and gobwas need Go. The
system's own configuration is neither read nor changed.
"""


@click.command(name="lab", no_args_is_help=True, help=_HELP)
@click.argument("name", metavar="NAME")
@click.option(
    "-c",
    "--connections",
    metavar="N",
    help="How many it must hold.  [default: 100k for nginx, nchan and builtin, 9k for haproxy-proxy, 256 for apache-prefork, 16 "
    "for the textbook models, else 10k]",
)
@click.option("-k", "--keepalive", default="3600", metavar="TIME", show_default=True, help="Longest --keepalive of the clients.")
@click.option("--port", default="0", metavar="PORT", show_default=True, help="Port, 0: any. The status page has the next one.")
@click.option("--tls", is_flag=True, help="Use TLS, with a new certificate, if the server can.")
@click.option("--http2", is_flag=True, help="Speak HTTP/2, if the server can.")
@click.option("--ws-deflate", is_flag=True, help="Accept permessage-deflate (WebSocket), if the server can.")
def command(name: str, connections: str | None, keepalive: str, port: str, tls: bool, http2: bool, ws_deflate: bool) -> int:
    count = None if connections is None else parsed("--connections", parse_count, connections)
    seconds = seconds_of("--keepalive", keepalive)
    if not port.isdigit() or int(port) > 65535:
        raise PlanError(f"--port: {port!r} is not a port; write a number from 0 to 65535")
    import asyncio

    asyncio.run(_serve(name, count, keepalive_s=seconds, port=int(port), tls=tls, http2=http2, deflate=ws_deflate))
    return 0


async def _serve(name: str, connections: int | None, **options: Any) -> None:
    import asyncio
    import shlex

    from asyncli import lab
    from asyncli.cli.signals import stop_signals

    stopped = asyncio.Event()
    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    asked = {} if connections is None else {"connections": connections}
    async with lab.choose(name, **options, **asked) as server:
        workers = "1 worker" if server.workers == 1 else f"{server.workers} workers"
        click.echo(f"{server.label} with {workers}, pid {server.pid}; Ctrl-C ends it")
        click.echo(f"  target  {server.url}")
        if server.also:
            click.echo(f"  also    {server.url.replace(server.scheme, server.also, 1)}")
        flags = ""
        # The page's address may contain shell characters.
        for label, flag, value in (("status", "--status-url", server.status_url), ("ca", "--ca", server.authority)):
            if value is not None:
                click.echo(f"  {label:<7} {value}")
                flags += f"{flag} {shlex.quote(str(value))} "
        flags += "".join(f"--{key} {shlex.quote(value)} " for key, value in server.plan_keys.items())
        flags += "--http2 " * server.http2 + "--ws-deflate " * server.deflate
        click.echo(f"  try     asyncli soak -c {server.connections} {flags}{server.url}")
        await stopped.wait()
