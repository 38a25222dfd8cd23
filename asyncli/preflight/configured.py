"""Reads the configuration of an nginx on this host, and its master's limits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from asyncli.collect.holders import sockets_held
from asyncli.collect.locate import topmost
from asyncli.collect.procfs import command_line, link, parse_listeners, readable_stat, shares_namespace, tree
from asyncli.model.products import NGINXES, Frontend, product_of
from asyncli.model.records import Check
from asyncli.preflight.host_limits import NO_LIMIT, read_rlimit
from asyncli.preflight.nginx_blocks import NginxConfig
from asyncli.preflight.nginx_choice import StatusAddress
from asyncli.preflight.nginx_config import read_nginx


class Descriptors(msgspec.Struct, frozen=True):
    """The ``processes`` of a server that hold a listening socket (all of its if none is seen): the sums of their soft descriptor
    limits, and of the descriptors that are ``open`` (0 before Linux 6.2)."""

    processes: int
    limit: int
    open: int


class Configured(msgspec.Struct, frozen=True):
    """``nginx``: None for another server, or if unreadable; then ``unknown`` has the reason. ``inherited_nofile``: the soft
    descriptor limit of the running master. ``silent_pages``: its status pages that did not answer. ``descriptors``: of a server
    whose configuration was not read. ``product``: of its program, by :func:`~asyncli.model.products.product_of`. ``frontends``:
    HAProxy's, by its status page."""

    nginx: NginxConfig | None = None
    unknown: Check | None = None
    inherited_nofile: int | None = None
    silent_pages: tuple[StatusAddress, ...] = ()
    descriptors: Descriptors | None = None
    product: str = ""
    frontends: dict[str, Frontend] = {}


def read_configured(
    pid: int | None, exe: str | None, config_path: str | None, root: Path = Path("/"), pids: Sequence[int] = ()
) -> Configured:
    """The configuration of the server with process ``pid``, program ``exe`` and main file ``config_path`` (None: unknown), or the
    limits of its root processes ``pids``. Blocking: reads files and may run ``nginx -V``."""
    found = _read_nginx(pid, exe, config_path, root)
    if found.nginx is not None:
        return found
    program = exe or (link(pid, "exe", root / "proc") if pid is not None else None) or ""
    return msgspec.structs.replace(
        found, descriptors=_descriptors(pids, root / "proc"), product=product_of(Path(program).name)
    )


def _read_nginx(pid: int | None, exe: str | None, config_path: str | None, root: Path) -> Configured:
    title = ""
    if pid is not None:
        pid = topmost(pid, (), root / "proc")
        title, exe = command_line(pid, root / "proc"), exe or link(pid, "exe", root / "proc")
    is_nginx = title.startswith("nginx: ") or (exe is not None and Path(exe).name in NGINXES)
    if not is_nginx:
        if pid is None and exe is None:
            what, detail = "the server's own limits", "its process is not known, so they were not read"
            return Configured(unknown=Check("server", what, "unknown", detail=detail))
        return Configured()
    if pid is not None and shares_namespace(pid, "mnt", root / "proc") is False and config_path is None:
        # Its nginx.conf is not our file of that name.
        what, detail = "nginx's configuration", "nginx runs in a container, whose files are not visible here"
        return Configured(unknown=Check("nginx_config", what, "unknown", detail=detail, remedy="run asyncli check in it"))
    config = read_nginx(exe, config_path, command_line=title, pid=pid)
    if not isinstance(config, NginxConfig):
        return Configured(unknown=config)
    inherited = read_rlimit(root / f"proc/{pid}/limits", "Max open files")[0] if pid is not None else None
    return Configured(nginx=config, inherited_nofile=inherited)


def _descriptors(pids: Sequence[int], proc: Path) -> Descriptors | None:
    """None if a limit cannot be read."""
    try:
        found = tree((readable_stat(pid, proc) for pid in pids), proc)
    except OSError:
        return None
    living = [pid for pid, stat in found.items() if not stat.ended]
    holders = [pid for pid in living if _listens(pid, proc)] or living
    limits = [read_rlimit(proc / f"{pid}/limits", "Max open files")[0] for pid in holders]
    known = [one for one in limits if one is not None]
    if not known or len(known) < len(limits):
        return None
    opened = 0
    for pid in holders:
        with contextlib.suppress(OSError):
            # Their number, without listing them.
            opened += os.stat(proc / f"{pid}/fd").st_size
    return Descriptors(len(holders), min(sum(known), NO_LIMIT), opened)


def _listens(pid: int, proc: Path) -> bool:
    """Whether it is seen to hold a listening TCP socket."""
    inodes = set[int]()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(proc / f"{pid}/net/{name}", encoding="ascii") as lines:
            inodes |= {one.inode for one in parse_listeners(lines)}
    return any(sockets_held(pid, inodes, proc))
