"""Runs an agent for a terminal, or as a service: what it says, its signals, its exit status."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
import stat
import sys
from typing import Any

from asyncli import __version__
from asyncli.agent.server import Agent
from asyncli.agent.wire import read_token
from asyncli.certificates import identify, refused_because
from asyncli.cli.places import UNSEEN
from asyncli.cli.signals import Heard, caught
from asyncli.errors import HostError, PlanError
from asyncli.plan import KEYS, Plan
from asyncli.preflight.limits import raise_nofile
from asyncli.secret_variables import TOKEN_VARIABLE


def run_agent(
    values: dict[str, Any], host: str, port: int, token_file: str | None, certificate: str | None, key: str | None
) -> int:
    """Sample and serve until a signal; 0. Raises :class:`~asyncli.errors.AsyncliError` for what stands in the way."""
    token = read_token(token_file, "--token-file")
    if token is None and not _loopback(host):
        raise PlanError(
            f"--listen: {host} is not loopback, where a token is a must; make one (head -c 24 /dev/urandom | base64 > token) and "
            f"name it with --token-file, or set {TOKEN_VARIABLE}"
        )
    tls = None if certificate is None else _tls(certificate, key)
    if token_file is not None and os.stat(token_file).st_mode & (stat.S_IRGRP | stat.S_IROTH):
        _say(f"warning: {token_file} can be read by others on this host; chmod 600 {token_file}")
    if tls is not None and certificate is not None and (why := refused_because(tls, certificate)) is not None:
        _say(f"warning: --tls-cert {certificate}: {why}; every soak will refuse it until the agent is started with another")
    if token is not None and tls is None and not _loopback(host):
        _say("warning: the token crosses the network in the clear; give --tls-cert and --tls-key")
    raise_nofile()
    asyncio.run(_run(_plan(values), host, port, token, tls))
    # What it said is a log, not a report: its end does not wait for a reader.
    Heard.late = True
    return 0


def _tls(certificate: str, key: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    return identify(context, ("--tls-cert", "--tls-key"), certificate, key)


async def _run(plan: Plan, host: str, port: int, token: str | None, tls: Any) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in caught():
        loop.add_signal_handler(number, stopped.set)
    agent = Agent(plan, host=host, port=port, token=token, tls=tls, say=_say)
    try:
        await agent.open()
        server = agent.server
        what = server.version or server.name or "the server"
        which = f", pid {server.pid}" if server.pid is not None else ""
        shown = f"[{host}]" if ":" in host else host
        _say(f"asyncli agent {__version__} samples {what}{which}, and listens at http{'s' if tls else ''}://{shown}:{agent.port}")
        for line in agent.unknown:
            _say(f"not known here: {line}")
        running = asyncio.create_task(agent.run())
        stopping = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            for task in (running, stopping):
                task.cancel()
            await asyncio.wait({running, stopping})
    finally:
        await agent.close()
    _say("asyncli agent ends")


def _plan(values: dict[str, Any]) -> Plan:
    """What to sample, as a plan: without a URL it connects to nobody."""
    fields: dict[str, Any] = {}
    for key, raw in values.items():
        if raw is not None:
            field, parse = KEYS[key]
            try:
                fields[field] = parse(raw)
            except ValueError as error:
                raise PlanError(f"--{key.replace('_', '-')}: {error}") from None
    # Who listens on the status page's port is the server.
    return Plan(urls=(fields["status_url"],) if "status_url" in fields else (), **fields)


def _loopback(host: str) -> bool:
    """Whether nobody but this host can connect there. Raises :class:`HostError` for a name that does not resolve."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise HostError(f"--listen: {host!r} cannot be resolved ({why}); write an address of this host") from None
    return all(ipaddress.ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in infos)


def _say(line: str) -> None:
    """A line for the log: a service's journal, a terminal."""
    with contextlib.suppress(*UNSEEN):
        print(line, file=sys.stderr, flush=True)
