"""The facts about this host that affect a run's numbers; the run file keeps them."""

from __future__ import annotations

import asyncio
import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from asyncli import __version__
from asyncli.collect.listening import no_listener
from asyncli.collect.procfs import link
from asyncli.engine.resolve import plan_spread
from asyncli.engine.spread import Spread, show
from asyncli.model.plan import Plan
from asyncli.model.records import Environment
from asyncli.model.text import plain, printable
from asyncli.preflight.host_limits import Limits, raise_nofile, read_limits

#: The sysctls that affect a connection's cost and limits.
SYSCTLS = (
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_max_tw_buckets",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_syn_linear_timeouts",
    "net.core.somaxconn",
    "fs.file-max",
    "fs.nr_open",
    "fs.epoll.max_user_watches",
    "vm.overcommit_memory",
)


async def probe_host(plan: Plan) -> tuple[Limits, Spread]:
    """Raise our descriptor limit; returns this host's limits and the plan's spread.

    Raises the errors of :func:`~asyncli.engine.resolve.plan_spread`.
    """
    raise_nofile()
    limits = read_limits()
    return limits, await spread_over(
        limits, plan, listens=lambda address, port: no_listener([(address, port)]) is None
    )


async def spread_over(limits: Limits, plan: Plan, **more: Any) -> Spread:
    """The plan's spread over this host; ``more``: see
    :func:`~asyncli.engine.resolve.plan_spread`.
    """
    # If the range cannot be read: Linux's default (32768-60999).
    ports = limits.ports if limits.ports is not None else 28_232
    nofile, cpus = limits.nofile_hard or 1024, limits.cpus or 1
    return await asyncio.to_thread(plan_spread, plan, ports=ports, nofile=nofile, cpus=cpus, **more)


def read_environment(limits: Limits, spread: Spread) -> Environment:
    """The facts for a plan as plain data for JSON; None: unreadable."""
    return {
        **read_host(limits),
        "local": spread.local,
        "workers": spread.workers,
        "sources": max(1, len(spread.sources)),
        "destinations": [show(destination) for destination in spread.destinations],
    }


def read_host(limits: Limits) -> Environment:
    """The facts about this host."""
    sysctls = {name: _read(f"/proc/sys/{name.replace('.', '/')}") for name in SYSCTLS}
    cpuinfo = (_read("/proc/cpuinfo") or "").splitlines()
    model = next(
        (line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")), None
    )
    known: dict[str, Any] = msgspec.to_builtins(limits)
    facts = {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu_model": model,
        "python": platform.python_version(),
        "asyncli": __version__,
        "program": _program(),
        "host": host_name(),
        "network": network(),
        "cpus": limits.cpus or os.cpu_count(),
        "memory_bytes": limits.memory_total,
        "limits": known,
        "sysctls": sysctls,
    }
    return {key: plain(value) for key, value in facts.items()}


def host_name() -> str:
    """The host's name, made printable: sethostname(2) allows any byte."""
    return printable(platform.node())


def _program() -> str:
    """The command that starts this asyncli, with absolute paths."""
    path = os.path.abspath(sys.argv[0])
    words = f"{shlex.quote(sys.executable)} -m asyncli"
    if os.path.basename(path) == "asyncli":
        words = shlex.quote(path)
    return os.fsencode(words).decode("utf-8", "replace")


def boot_id() -> str | None:
    """The id of this machine's boot, which its containers and namespaces share."""
    return _read("/proc/sys/kernel/random/boot_id")


def network() -> str | None:
    """The id of this network namespace, which has its own ports and TCP counters; unique within a
    boot.
    """
    return link("self", "ns/net")


def clock_at(zero_s: float) -> dict[str, Any]:
    """The instant ``zero_s`` of time.monotonic() for other processes: the run's zero, in a run
    file's ``clock``.

    ``wall_s``: its Unix time. ``monotonic_s``: on the clock that processes with this ``boot_id``
    and ``time_ns`` share (random(4); time_namespaces(7): a namespace may shift it). None:
    unreadable.
    """
    return {
        "wall_s": time.time() - (time.monotonic() - zero_s),
        "monotonic_s": zero_s,
        "boot_id": boot_id(),
        "time_ns": link("self", "ns/time"),
    }


class _Clock(msgspec.Struct):
    monotonic_s: float
    boot_id: str | None
    time_ns: str | None


def on_clock(clock: Mapping[str, Any], monotonic_s: float) -> float | None:
    """The instant ``monotonic_s`` of time.monotonic() in this process, in seconds since the zero of
    a run's ``clock``; None for a clock that is not this one's, or may not be.

    Raises :class:`msgspec.ValidationError` for what is no clock.
    """
    of_run = msgspec.convert(clock, _Clock)
    here = (boot_id(), link("self", "ns/time"))
    if here[0] is None or here != (of_run.boot_id, of_run.time_ns):
        return None
    return monotonic_s - of_run.monotonic_s


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
