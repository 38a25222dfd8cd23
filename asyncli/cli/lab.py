"""``asyncli lab NAME``: a local server to aim at."""

from __future__ import annotations

import click

from asyncli.cli.options import parsed, seconds_of
from asyncli.errors import PlanError
from asyncli.units import parse_count


@click.command(name="lab", no_args_is_help=True)
@click.argument("name", metavar="NAME")
@click.option(
    "-c",
    "--connections",
    metavar="N",
    help="How many it must hold.  [default: 100k; nginx-proxy 5k, apache-prefork 256, apache-event, haproxy, "
    "mosquitto, redis and memcached 10k, server models 16]",
)
@click.option("-k", "--keepalive", default="3600", metavar="TIME", show_default=True, help="The clients' longest keepalive.")
@click.option("--port", default="0", metavar="PORT", show_default=True, help="The port; 0: a free one.")
@click.option("--tls", is_flag=True, help="Speak TLS, with a new certificate: not nginx-proxy and the models.")
def command(name: str, connections: str | None, keepalive: str, port: str, tls: bool) -> int:
    """Start a local server, print its address, and run it until Ctrl-C.

    NAME is nginx, nginx-proxy (an nginx before two others), nchan (an nginx that holds WebSockets and event streams),
    apache-prefork, apache-event, haproxy, mosquitto (MQTT), redis, memcached, or builtin (asyncli's own); or a textbook model:
    iterative, fork (a process per client), prefork, thread (a thread per client), thread-pool, thread-queue, asyncio. All but
    builtin must be installed; the models but asyncio need a C compiler. The system's own configuration is neither read nor
    changed.
    """
    count = None if connections is None else parsed("--connections", parse_count, connections)
    seconds = seconds_of("--keepalive", keepalive)
    if not port.isdigit() or int(port) > 65535:
        raise PlanError(f"--port: {port!r} is not a port; write a number from 0 to 65535")
    import asyncio

    asyncio.run(_serve(name, count, seconds, int(port), tls))
    return 0


async def _serve(name: str, connections: int | None, keepalive_s: float, port: int, tls: bool) -> None:
    import asyncio
    import shlex

    from asyncli import lab
    from asyncli.cli.signals import caught

    stopped = asyncio.Event()
    for number in caught():
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    asked = {} if connections is None else {"connections": connections}
    async with lab.choose(name, keepalive_s=keepalive_s, port=port, tls=tls, **asked) as server:
        workers = "1 worker" if server.workers == 1 else f"{server.workers} workers"
        click.echo(f"{server.label} with {workers}, pid {server.pid}; Ctrl-C ends it")
        click.echo(f"  target  {server.url}")
        # The page's address may contain shell characters.
        status = "" if server.status_url is None else f"--status-url {shlex.quote(server.status_url)} "
        if server.status_url is not None:
            click.echo(f"  status  {server.status_url}")
        authority = "" if server.authority is None else f"--ca {shlex.quote(str(server.authority))} "
        if server.authority is not None:
            click.echo(f"  authority  {server.authority}")
        keys = "".join(f"--{key} {shlex.quote(value)} " for key, value in server.plan_keys.items())
        click.echo(f"  try     asyncli soak -c {server.connections} {status}{authority}{keys}{server.url}")
        await stopped.wait()
