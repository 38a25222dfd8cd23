"""Reads the configuration of an nginx on this host, and its master's limits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from asyncli.collect.holders import sockets_held
from asyncli.collect.locate import topmost
from asyncli.collect.procfs import (
    command_line,
    link,
    parse_listeners,
    readable_stat,
    shares_namespace,
    tree,
)
from asyncli.collect.server_limits import ServerLimits
from asyncli.model.products import NGINXES, Backend, Frontend, product_of
from asyncli.model.records import Check
from asyncli.preflight.host_limits import NO_LIMIT, read_rlimit
from asyncli.preflight.nginx_blocks import NginxConfig
from asyncli.preflight.nginx_choice import StatusAddress
from asyncli.preflight.nginx_config import read_nginx


class Descriptors(msgspec.Struct, frozen=True):
    """The ``processes`` of a server that hold a listening socket (all of its if none is seen).

    The sums of their soft descriptor limits, and of the descriptors that are ``open`` (0 before
    Linux 6.2).
    """

    processes: int
    limit: int
    open: int


class Configured(msgspec.Struct, frozen=True):
    """What is known of the server's configuration.

    ``nginx``: None for another server, or if unreadable; then ``unknown`` has the reason.
    ``inherited_nofile``: the soft descriptor limit of the running master. ``silent_pages``: its
    status pages that did not answer. ``descriptors``: of a server whose configuration was not read.
    ``product``: of its program, by :func:`~asyncli.model.products.product_of`. ``frontends``:
    and ``backends``: HAProxy's, by its status page; ``all_frontends``: the first together, under
    its global maxconn.
    ``limits``: metrics of its tasks, address space and source ports, as samples have them.
    """

    nginx: NginxConfig | None = None
    unknown: Check | None = None
    inherited_nofile: int | None = None
    silent_pages: tuple[StatusAddress, ...] = ()
    descriptors: Descriptors | None = None
    product: str = ""
    frontends: dict[str, Frontend] = {}
    backends: dict[str, Backend] = {}
    all_frontends: Frontend | None = None
    #: The metric of the server's own page that counts connections; "": none does.
    counted_by: str = ""
    #: The program, with its pid, whose page of metrics is read, if that is not the server; "": it
    #: is the server's, or unknown.
    page_of: str = ""
    limits: dict[str, float] = {}


def read_configured(
    pid: int | None,
    exe: str | None,
    config_path: str | None,
    root: Path = Path("/"),
    pids: Sequence[int] = (),
) -> Configured:
    """The configuration of the server with process ``pid``, program ``exe`` and main file
    ``config_path`` (None: unknown), or the limits of its root processes ``pids``.

    Blocking: reads files and may run ``nginx -V``.
    """
    proc = root / "proc"
    configured = _read_nginx(pid, exe, config_path, proc)
    if configured.nginx is not None:
        return configured
    program = exe or ""
    if not program and pid is not None:
        program = link(pid, "exe", proc) or ""
    return msgspec.structs.replace(
        configured,
        descriptors=_descriptors(pids, proc),
        product=product_of(Path(program).name),
        limits=_limits(pids, proc),
    )


def _read_nginx(
    pid: int | None, exe: str | None, config_path: str | None, proc: Path
) -> Configured:
    """The configuration of an nginx; empty for another server."""
    title = ""
    if pid is None and exe is None:
        subject = "the server's own limits"
        detail = "its process is not known, so they were not read"
        return Configured(unknown=Check("server", subject, "unknown", detail=detail))
    if pid is not None:
        pid = topmost(pid, (), proc)
        title = command_line(pid, proc)
        exe = exe or link(pid, "exe", proc)
    if not _is_nginx(title, exe):
        return Configured()
    if config_path is None and pid is not None and shares_namespace(pid, "mnt", proc) is False:
        return Configured(unknown=_in_a_container())
    config = read_nginx(exe, config_path, command_line=title, pid=pid)
    if not isinstance(config, NginxConfig):
        return Configured(unknown=config)
    if pid is None:
        return Configured(nginx=config)
    inherited, _ = read_rlimit(proc / f"{pid}/limits", "Max open files")
    return Configured(nginx=config, inherited_nofile=inherited, limits=_limits([pid], proc))


def _is_nginx(title: str, exe: str | None) -> bool:
    if title.startswith("nginx: "):
        return True
    return exe is not None and Path(exe).name in NGINXES


def _in_a_container() -> Check:
    """Its nginx.conf is not our file of that name."""
    return Check(
        "nginx_config",
        "nginx's configuration",
        "unknown",
        detail="nginx runs in a container, whose files are not visible here",
        remedy="run asyncli check in it",
    )


def _limits(pids: Sequence[int], proc: Path) -> dict[str, float]:
    """Metrics of the tasks and the address space of the server with these root processes."""
    try:
        processes = tree((readable_stat(pid, proc) for pid in pids), proc)
    except OSError:
        return {}
    living = [stat for stat in processes.values() if not stat.ended]
    return ServerLimits(lambda: living, proc=proc).read().values


def _descriptors(pids: Sequence[int], proc: Path) -> Descriptors | None:
    """None if a limit cannot be read."""
    try:
        processes = tree((readable_stat(pid, proc) for pid in pids), proc)
    except OSError:
        return None
    living = [pid for pid, stat in processes.items() if not stat.ended]
    holders = [pid for pid in living if _listens(pid, proc)] or living
    if not holders:
        return None
    allowed = 0
    for pid in holders:
        soft, _ = read_rlimit(proc / f"{pid}/limits", "Max open files")
        if soft is None:
            return None
        allowed += soft
    opened = 0
    for pid in holders:
        with contextlib.suppress(OSError):
            # Their number, without listing them.
            opened += os.stat(proc / f"{pid}/fd").st_size
    return Descriptors(len(holders), min(allowed, NO_LIMIT), opened)


def _listens(pid: int, proc: Path) -> bool:
    """Whether it is seen to hold a listening TCP socket."""
    inodes = set[int]()
    for name in ("tcp", "tcp6"):
        table = proc / f"{pid}/net/{name}"
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
            inodes |= {listener.inode for listener in parse_listeners(lines)}
    return any(sockets_held(pid, inodes, proc))
