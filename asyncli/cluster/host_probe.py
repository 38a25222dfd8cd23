"""Probes a client host in its Dask worker before the start. Sends nothing to the target."""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from asyncli import __version__
from asyncli.engine.spread import Spread
from asyncli.environment import boot_id, host_name, network, spread_over
from asyncli.model.certificates import client_context
from asyncli.model.errors import AsyncliError, HostError
from asyncli.model.installed import is_installed
from asyncli.model.plan import load_plan
from asyncli.preflight.host_limits import Limits, read_limits


class HostProbe(msgspec.Struct, frozen=True, kw_only=True):
    """A host as its Dask worker sees it. ``place`` is the same for all workers that share a kernel
    and a network.
    """

    asyncli: str
    host: str
    place: str
    boot: str
    limits: Limits
    spread: Spread | None = None
    #: The session that uses it: one at a time.
    held_by: str = ""
    #: Why it cannot run the plan, in one line.
    why_not: str = ""


class _Version(msgspec.Struct, frozen=True):
    """The field of every version's probe."""

    asyncli: str = "?"


def _require_tls() -> None:
    """Raise :class:`HostError` if a client host has no library for TLS."""
    if not is_installed("cryptography"):
        raise HostError(
            "TLS needs cryptography, which is not installed there; "
            "pip install 'asyncli-light[host,tls]'"
        )


def read_probe(packed: bytes) -> HostProbe | str:
    """Decode the result of :func:`probe_client_host`; an error text if another version made it."""
    try:
        version = msgspec.msgpack.decode(packed, type=_Version).asyncli
        if version == __version__:
            return msgspec.msgpack.decode(packed, type=HostProbe)
    except ValueError:
        version = "?"
    return f"has asyncli {version}, here it is {__version__}; install the same"


async def probe_client_host(plan: dict[str, Any]) -> bytes:
    """Probe this host: msgpack of :class:`HostProbe`. Resolves names here; keeps only this host's
    ``--source`` addresses.
    """
    limits = read_limits()
    seen = HostProbe(
        asyncli=__version__,
        host=host_name(),
        place=_place(),
        boot=machine(),
        limits=limits,
        held_by=held_by,
    )
    try:
        asked = load_plan(plan)
        if asked.sources:
            asked = msgspec.structs.replace(
                asked,
                sources=tuple(source for source in asked.sources if _is_local(source))
                or asked.sources[:1],
            )
        spread = await spread_over(limits, asked)
        if asked.tls is not None:
            _require_tls()
            client_context(asked.tls)  # its files are on this host
    except AsyncliError as error:
        return msgspec.msgpack.encode(msgspec.structs.replace(seen, why_not=str(error)))
    return msgspec.msgpack.encode(msgspec.structs.replace(seen, spread=spread))


#: The session that holds this process; "" for none.
held_by = ""


def machine() -> str:
    """The boot id of this machine, or its name if that cannot be read."""
    return boot_id() or host_name()


def _place() -> str:
    # Ports belong to a network namespace, so containers of one machine count as hosts.
    return f"{machine()} {network() or host_name()}"


def _is_local(source: str) -> bool:
    try:
        with socket.socket(
            socket.AF_INET6 if ":" in source else socket.AF_INET, socket.SOCK_STREAM
        ) as sock:
            sock.bind((source, 0))
    except OSError:
        return False
    return True
