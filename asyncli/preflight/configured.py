"""Reads the configuration of an nginx on this host, and its master's limits."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from asyncli.collect.procfs import command_line, link, read_stat
from asyncli.model.records import Check
from asyncli.preflight.host_limits import read_rlimit
from asyncli.preflight.nginx_config import NginxConfig, read_nginx

_NGINXES = frozenset({"nginx", "openresty", "tengine", "angie", "freenginx"})


class Configured(msgspec.Struct, frozen=True):
    """``nginx``: None for another server, or if unreadable; then ``unknown`` has the reason. ``inherited_nofile``: the soft
    descriptor limit of the running master. ``silent_pages``: its status pages that did not answer."""

    nginx: NginxConfig | None = None
    unknown: Check | None = None
    inherited_nofile: int | None = None
    silent_pages: tuple[str, ...] = ()


def read_configured(pid: int | None, exe: str | None, config_path: str | None, root: Path = Path("/")) -> Configured:
    """The configuration of the server with process ``pid``, program ``exe`` and main file ``config_path`` (None: unknown).
    Blocking: reads files and may run ``nginx -V``."""
    command_line = ""
    if pid is not None:
        pid, command_line = _master(pid, root)
        exe = exe or link(pid, "exe", root / "proc")
    is_nginx = command_line.startswith("nginx: ") or (exe is not None and Path(exe).name in _NGINXES)
    if not is_nginx:
        if pid is None and exe is None:
            what, detail = "the server's own limits", "its process is not known, so they were not read"
            return Configured(unknown=Check("server", what, "unknown", detail=detail))
        return Configured()
    ours, theirs = (None if one is None else link(one, "ns/mnt", root / "proc") for one in ("self", pid))
    if ours and theirs and ours != theirs and config_path is None:
        # Its nginx.conf is not our file of that name.
        what, detail = "nginx's configuration", "nginx runs in a container, whose files are not visible here"
        return Configured(unknown=Check("nginx_config", what, "unknown", detail=detail, remedy="run asyncli check in it"))
    config = read_nginx(exe, config_path, command_line=command_line, pid=pid)
    if not isinstance(config, NginxConfig):
        return Configured(unknown=config)
    inherited = read_rlimit(root / f"proc/{pid}/limits", "Max open files")[0] if pid is not None else None
    return Configured(nginx=config, inherited_nofile=inherited)


def _master(pid: int, root: Path) -> tuple[int, str]:
    """The master of this nginx process and its title; for another process, itself and its command line."""
    line = command_line(pid, root / "proc")
    if line.startswith("nginx: ") and not line.startswith("nginx: master"):
        with contextlib.suppress(OSError, ValueError):
            parent = read_stat(pid, root / "proc").parent
            title = command_line(parent, root / "proc")
            if title.startswith("nginx: master"):
                return parent, title
    return pid, line
