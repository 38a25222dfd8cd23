"""``asyncli agent``."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from asyncli import __version__
from asyncli.cli.command import Command
from asyncli.cli.options import parsed, server_options, trust_options
from asyncli.cli.outputs import OUTPUT_GONE
from asyncli.cli.signals import Signals, stop_signals
from asyncli.model.consistency import require_pages, require_tls
from asyncli.model.errors import PlanError
from asyncli.model.plan import KEYS, Plan
from asyncli.model.secret_variables import TOKEN_VARIABLE
from asyncli.model.status_place import status_place
from asyncli.model.values import AGENT_PORT

if TYPE_CHECKING:
    from ssl import SSLContext


@click.command(
    name="agent", cls=Command, no_args_is_help=True, context_settings={"max_content_width": 110}
)
@server_options
@trust_options
@click.option(
    "--listen",
    default=f"127.0.0.1:{AGENT_PORT}",
    metavar="HOST:PORT",
    show_default=True,
    help="Address to listen on.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="A file with the token, required beyond loopback.  [default: $ASYNCLI_AGENT_TOKEN]",
)
@click.option(
    "--tls-cert", metavar="FILE", help="Use TLS with this certificate (PEM, followed by its chain)."
)
@click.option(
    "--tls-key",
    metavar="FILE",
    help="Key of the certificate.  [default: in the certificate's file]",
)
@click.option(
    "--allow-collect",
    is_flag=True,
    help="Let a session ask the server's runtime for collections (soak --collect auto). Needs a "
    "token.",
)
def command(**values: Any) -> int:
    """Sample the server on this host, for 'asyncli soak --agent URL' on another host and for
    Prometheus (/metrics).

    It reads the status page, processes, kernel and limits once a second, keeps ten minutes of
    samples, and changes nothing without --allow-collect. Ctrl-C or SIGTERM ends it.
    """
    from asyncli.web.address import parse_address

    host, port = parse_address(
        "--listen", values.pop("listen"), f"HOST:PORT, such as 10.0.0.8:{AGENT_PORT}"
    )
    token_file = values.pop("token_file")
    certificate = values.pop("tls_cert")
    key = values.pop("tls_key")
    allows_collect = values.pop("allow_collect")
    if key is not None and certificate is None:
        raise PlanError("--tls-key: there is no certificate; name it with --tls-cert")
    keys = ("server_pid", "server_pidfile", "server_name")
    named = [f"--{name.replace('_', '-')}" for name in keys if values[name] is not None]
    if len(named) > 1:
        raise PlanError(f"{' and '.join(named)}: name the server once; leave out all but one")
    if not named and values["status_url"] is None:
        raise PlanError(
            "no server named; give its --status-url, or name its process with --server-name, "
            "--server-pidfile or --server-pid"
        )
    return _run(values, host, port, token_file, certificate, key, allows_collect=allows_collect)


def _run(
    values: dict[str, Any],
    host: str,
    port: int,
    token_file: str | None,
    certificate: str | None,
    key: str | None,
    *,
    allows_collect: bool,
) -> int:
    """Sample and serve until a signal; return 0.

    Raises :class:`~asyncli.model.errors.AsyncliError` if it cannot start.
    """
    import asyncio

    from asyncli.preflight.host_limits import raise_nofile
    from asyncli.web.address import is_loopback, server_tls, warning_of_readers

    token = _token(host, token_file)
    if allows_collect and token is None:
        raise PlanError(
            "--allow-collect: a collection stops the server for a while, and without a token every "
            f"user of this host could ask for it; name one with --token-file, or set "
            f"{TOKEN_VARIABLE}"
        )
    tls = None
    if certificate is not None:
        tls = server_tls(("--tls-cert", "--tls-key"), certificate, key)
    warning = None if token_file is None else warning_of_readers(token_file)
    if warning is not None:
        _say(warning)
    if tls is not None and certificate is not None:
        _warn_of_certificate(tls, certificate)
    plan = _plan(values)
    if plan.insecure:
        _say("warning: --insecure: the status page's certificate is not verified")
    if token is not None and tls is None and not is_loopback("--listen", host):
        _say("warning: the token crosses the network in the clear; give --tls-cert and --tls-key")
    raise_nofile()
    asyncio.run(_serve(plan, host, port, token, tls, allows_collect=allows_collect))
    # The output is a log: the exit does not wait for its reader.
    Signals.late = True
    return 0


def _token(host: str, token_file: str | None) -> str | None:
    """The token; it may be missing on loopback only."""
    from asyncli.agent.wire import read_token
    from asyncli.web.address import is_loopback

    token = read_token(token_file, "--token-file")
    if token is None and not is_loopback("--listen", host):
        raise PlanError(
            f"--listen: {host} is not loopback, so a token is required; "
            "create one (head -c 24 /dev/urandom | base64 > token) "
            f"and name it with --token-file, or set {TOKEN_VARIABLE}"
        )
    return token


def _warn_of_certificate(tls: SSLContext, certificate: str) -> None:
    from asyncli.model.certificates import refused_because

    why = refused_because(tls, certificate)
    if why is not None:
        _say(
            f"warning: --tls-cert {certificate}: {why}; every soak will refuse it; "
            "restart the agent with another"
        )


async def _serve(
    plan: Plan, host: str, port: int, token: str | None, tls: Any, *, allows_collect: bool
) -> None:
    import asyncio

    from asyncli.agent.server import Agent
    from asyncli.web.address import url_of
    from asyncli.web.running import run_until

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, stopped.set)
    agent = Agent(
        plan, host=host, port=port, token=token, tls=tls, log=_say, collects=allows_collect
    )
    try:
        await agent.open()
        server = agent.server
        name = server.version or server.name or "the server"
        if server.pid is not None:
            name = f"{name}, pid {server.pid}"
        url = url_of(host, agent.port, is_secure=tls is not None)
        _say(f"asyncli agent {__version__} samples {name}, and listens at {url}")
        for line in agent.unknown:
            _say(f"unknown here: {line}")
        await run_until(agent.run(), stopped)
    finally:
        await agent.close()
    _say("asyncli agent ends")


def _plan(values: dict[str, Any]) -> Plan:
    """A plan without a target, which says what to sample."""
    flags = {field: f"--{key.replace('_', '-')}" for key, (field, _) in KEYS.items()}
    fields: dict[str, Any] = {}
    for key, (field, parse) in KEYS.items():
        raw = values.get(key)
        if raw is not None:
            fields[field] = parsed(flags[field], parse, raw)
    fields["urls"] = ()
    if "status_url" in fields:
        # The server listens on the status page's port.
        page = status_place(fields["status_url"])
        if not page.socket:
            fields["urls"] = (page.url,)
    require_tls(fields, flags)
    require_pages(fields, flags)
    return Plan(**fields)


def _say(line: str) -> None:
    """Print a line to the log: a service's journal, or a terminal."""
    with contextlib.suppress(*OUTPUT_GONE):
        print(line, file=sys.stderr, flush=True)
