"""``asyncli lab NAME``: a local server to aim at."""

from __future__ import annotations

import click

from asyncli.errors import PlanError
from asyncli.units import parse_count, parse_duration


@click.command(name="lab", no_args_is_help=True)
@click.argument("name", metavar="nginx|builtin")
@click.option("-c", "--connections", default="100k", metavar="N", show_default=True, help="How many it must be able to hold.")
@click.option("-k", "--keepalive", default="3600", metavar="TIME", show_default=True, help="The keepalive to outlast.")
@click.option("--port", default="0", metavar="PORT", show_default=True, help="Where to listen; 0 for any free port.")
def command(name: str, connections: str, keepalive: str, port: str) -> int:
    """Start a local server of NAME, print where it is, and keep it until Ctrl-C."""
    try:
        count, seconds = parse_count(connections), parse_duration(keepalive)
    except ValueError as error:
        raise PlanError(f"lab {name}: {error}") from None
    if not port.isdigit() or int(port) > 65535:
        raise PlanError(f"--port: {port!r} is not a port; write a number from 0 to 65535")
    import asyncio

    asyncio.run(_serve(name, count, seconds, int(port)))
    return 0


async def _serve(name: str, connections: int, keepalive_s: float, port: int) -> None:
    import asyncio
    import signal

    from asyncli import lab

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with lab.choose(name, connections=connections, keepalive_s=keepalive_s, port=port) as server:
        click.echo(f"{server.label} with {server.workers} workers, pid {server.pid}; Ctrl-C ends it")
        click.echo(f"  target  {server.url}")
        click.echo(f"  status  {server.status_url}")
        click.echo(f"  try     asyncli soak -c {connections} --status-url {server.status_url} {server.url}")
        await stopped.wait()
