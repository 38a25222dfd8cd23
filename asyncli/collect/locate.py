"""Finds the server's processes: those that the plan names, or that hold the socket listening on the plan's port.

Done once at the start (and again if the server ends), never at a tick: listing descriptors creates dentries.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncli.collect.holders import INITS, listening_at, sockets_held
from asyncli.collect.listening import listens_elsewhere
from asyncli.collect.procfs import PROC, Stat, command_line, link, parents, read_stat
from asyncli.findings.server import find_by_user, server_not_listening, server_program_not_run
from asyncli.model.errors import HostError
from asyncli.model.plan import Plan
from asyncli.model.records import Finding
from asyncli.model.text import oneline, tidy
from asyncli.model.trust import User, ask_server, read_regular, user_of
from asyncli.model.values import Target

# Programs that listen for a server in a container or elsewhere: their memory is not the server's.
_FORWARDERS = frozenset({"docker-proxy", "rootlessport", "conmon", "kube-proxy", "sshd", "socat"})
_NAME_A_PROCESS = "name it with --server-pid, --server-pidfile or --server-name"
# HAProxy sends no Server header, and nginx may be configured not to.
_VERSION_FLAGS = {"nginx": "-V", "haproxy": "-v"}
# A pid file is one line; nginx's main configuration file is seldom more than 100 kB.
_LONGEST_PIDFILE, _LONGEST_CONFIG = 4096, 4 << 20


class Found(msgspec.Struct, frozen=True):
    """The server's root processes (nginx's master), or none and the reason."""

    pids: tuple[int, ...] = ()
    how: str = ""
    why_not: str = ""
    remedy: str = ""
    #: They exist, but belong to another user.
    hidden: bool = False


class ServerFacts(msgspec.Struct, frozen=True):
    """The server as found at the start, null if unknown. ``version``: as the server writes it, "nginx/1.22.1"."""

    pid: int | None = None
    #: All root processes: more than one when separate processes share the port.
    pids: tuple[int, ...] = ()
    name: str | None = None
    exe: str | None = None
    version: str | None = None
    #: nginx only: the path on its command line, else the built-in default.
    config_path: str | None = None
    found_by: str | None = None
    #: A fingerprint of that file, to compare two runs; None if it cannot be read.
    config_hash: str | None = None
    #: Its processes belong to another user, so they were not found.
    hidden: bool = False
    #: Why its program was not run to print its version.
    not_asked: Finding | None = None
    #: The configuration of the plan's target, if it was read: directive -> value.
    directives: dict[str, str] = {}

    def __post_init__(self) -> None:
        tidy(self)

    def document(self, label: str | None = None) -> dict[str, object]:
        """The server as plain data, for the environment. ``label``: the lab's name for it."""
        own = "built-in server" if (self.version or "").startswith("asyncli/") else None
        called = label or own or self.version or self.name or "the server"
        return {"label": called, "version": self.version, "pid": self.pid, "exe": self.exe, "hidden": self.hidden}

    def record(self, label: str | None) -> dict[str, object]:
        """The server for the run file: :meth:`document`, the configuration's fingerprint, and the directives."""
        return {**self.document(label), "config_hash": self.config_hash} | (
            {"directives": self.directives} if self.directives else {}
        )

    def differences(self, before: Mapping[str, Any]) -> list[str]:
        """The differences from an earlier :meth:`record`, without the pid. A fact is compared only if both have it; the
        fingerprint only if one has no directives.
        """
        pairs = [("executable", before.get("exe"), self.exe)]
        if (earlier := before.get("directives")) and self.directives:
            names = dict.fromkeys([*earlier, *self.directives])
            pairs += [(name, earlier.get(name, "not set"), self.directives.get(name, "not set")) for name in names]
        else:
            pairs.append(("configuration", before.get("config_hash"), self.config_hash))
        found = [f"{what} {new}, before {old}" for what, old, new in pairs if old and new and old != new]
        old, new = before.get("version"), self.version
        if old and new:
            # "nginx" matches nginx/1.22.1: a Server header may omit the number.
            (name, _, number), (was, _, earlier) = new.partition("/"), str(old).partition("/")
            if name != was or (number and earlier and number != earlier):
                found.append(f"version {new}, before {old}")
        return found


def find_server(plan: Plan, *, local: bool, ours: Collection[int] = (), proc: Path = PROC) -> Found:
    """The server that ``plan`` names or aims at. ``ours``: asyncli's own processes. Raises :class:`HostError`."""
    if plan.server_pid is not None:
        return Found((_alive(plan.server_pid, "--server-pid", proc),), "--server-pid")
    if plan.server_pidfile is not None:
        return Found((_from_pidfile(plan.server_pidfile, proc),), f"--server-pidfile {plan.server_pidfile}")
    if plan.server_name is not None:
        return Found((_from_name(plan.server_name, ours, proc),), f"--server-name {plan.server_name}")
    if not local:
        return Found(why_not="the server is on another host, where its processes cannot be read")
    return _from_ports(plan.targets, ours, proc)


def _alive(pid: int, flag: str, proc: Path) -> int:
    try:
        stat = read_stat(pid, proc)
    except (OSError, ValueError):
        stat = None
    if stat is None or stat.ended:
        raise HostError(f"{flag}: no process {pid} on this host; give the pid of the server's master process")
    return pid


def _from_pidfile(path: str, proc: Path) -> int:
    flag = f"--server-pidfile {path}"
    try:
        text = read_regular(path, _LONGEST_PIDFILE).decode("ascii", "replace").strip()
    except OSError as error:
        raise HostError(f"{flag}: cannot be read ({error.strerror}); name the server's pid file") from None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise HostError(f"{flag}: holds no process id; name the server's pid file, for example /run/nginx.pid")
    return _alive(int(text), flag, proc)


def _from_name(name: str, ours: Collection[int], proc: Path) -> int:
    stats = {stat.pid: stat for stat in parents(proc) if not stat.ended}
    # The kernel truncates a process's name to 15 bytes.
    named = {
        pid
        for pid, stat in stats.items()
        if pid not in ours and (stat.name == name[:15] or os.path.basename(link(pid, "exe", proc) or "") == name)
    }
    roots = sorted(pid for pid in named if stats[pid].parent not in named)
    if not roots:
        raise HostError(f"--server-name {name}: no such process on this host; write its name as `ps -e` shows it")
    if len(roots) > 1:
        listed = ", ".join(map(str, roots[:8]))
        raise HostError(f"--server-name {name}: {len(roots)} process trees (pids {listed}); name one with --server-pid")
    return roots[0]


def doubt(plan: Plan, found: Found, *, ours: Collection[int] = (), proc: Path = PROC) -> Finding | None:
    """Why the process that ``plan`` names may not be the server on this host: no process of its tree (from its topmost ancestor
    of the same name) holds a socket at the targets, while another does, or while none of them has the user of the sockets.

    None where the holder forwards connections or starts services, and for a process with its own network, as in a container.
    """
    if not plan.names_server:
        return None
    (pid,), at = found.pids, listening_at(plan.targets, proc)
    networks = [link(one, "ns/net", proc) for one in ("self", pid)]
    if None not in networks and networks[0] != networks[1]:
        return None
    stats = {stat.pid: stat for stat in parents(proc)}
    names = {one: process_name(stat, proc) for one, stat in stats.items()}
    tree = {topmost(pid, {one: stat.parent for one, stat in stats.items()}, names, ours)}
    while more := {one for one, stat in stats.items() if stat.parent in tree} - tree:
        tree |= more
    if tree & at.holders or any(any(sockets_held(one, at.users, proc)) for one in tree):
        return None
    known = [{"name": names.get(one, "?"), "pid": one} for one in sorted(at.holders - set(ours))]
    # Root may have opened the sockets of another user's process.
    theirs = {0}.union(*(user_of(one, proc).all for one in tree))
    users = [] if at.holders or not theirs.isdisjoint(at.openers) else sorted(at.openers)
    if any(one["name"] in _FORWARDERS | INITS for one in known) or not (known or users):
        return None
    return server_not_listening(found.how, names.get(pid, "?"), pid, at.where, known, users)


def _from_ports(targets: Sequence[Target], ours: Collection[int], proc: Path) -> Found:
    at = listening_at(targets, proc)
    where = at.where
    if not at.users and not at.holders:
        if (elsewhere := listens_elsewhere(at.places, proc)) is not None:
            return Found(why_not=elsewhere.what, remedy=f"use {elsewhere.url}")
        remedy = f"start the server; where it is in a container, {_NAME_A_PROCESS}"
        return Found(why_not=f"nothing listens on {where} in this network namespace", remedy=remedy)
    holders = at.holders - set(ours)
    if at.holders and not holders:
        return Found(
            why_not=f"asyncli itself, or a process that started it, listens on {where}",
            remedy="start the server as a separate process",
        )
    if not holders:
        return _unreadable(where, at.openers)
    stats = {stat.pid: stat for stat in parents(proc)}
    names = {pid: process_name(stat, proc) for pid, stat in stats.items()}
    forwarders = sorted(names[pid] for pid in holders if names.get(pid) in _FORWARDERS)
    if forwarders:
        why_not = f"{forwarders[0]} listens on {where} and forwards connections to the server"
        return Found(why_not=why_not, remedy=_NAME_A_PROCESS)
    parent = {pid: stat.parent for pid, stat in stats.items()}
    return Found(tuple(sorted({topmost(pid, parent, names, ours) for pid in holders})), f"listens on {where}")


def _unreadable(where: str, users: Collection[int]) -> Found:
    """Why the holder of the listening socket was not found: its descriptors are hidden. ``users`` opened it."""
    listener = f"the process that listens on {where}"
    if os.geteuid() == 0:
        why_not = f"{listener} is in another namespace, or asyncli lacks CAP_SYS_PTRACE, so its descriptors are hidden"
        return Found(why_not=why_not, remedy=f"run asyncli in that namespace with CAP_SYS_PTRACE, or {_NAME_A_PROCESS}")
    why_not = f"{listener} belongs to another user, so its descriptors are hidden"
    return Found(why_not=why_not, remedy=find_by_user(users), hidden=True)


def process_name(stat: Stat, proc: Path = PROC) -> str:
    """The executable's file name, or the process's name if that is unreadable.

    If the process was started by a link to the executable, the link's name: Debian's redis-server links to redis-check-rdb. Not
    if that name is only the beginning of the file name.
    """
    exe = link(stat.pid, "exe", proc)
    if exe is None:
        return stat.name
    name = os.path.basename(exe)
    if not name.startswith(stat.name):
        with contextlib.suppress(OSError):
            if os.path.samefile(f"{proc}/{stat.pid}/root{os.path.dirname(exe)}/{stat.name}", f"{proc}/{stat.pid}/exe"):
                return stat.name
    return name


def topmost(pid: int, parent: Mapping[int, int], names: Mapping[int, str], stop: Collection[int] = ()) -> int:
    """The topmost ancestor with the same name, below ``stop``: asyncli may have started the server."""
    while True:
        above = parent.get(pid, 0)
        if above == 0 or above in stop or names.get(above) != names.get(pid):
            return pid
        pid = above


def own_ancestry(proc: Path = PROC) -> frozenset[int]:
    """This process and its ancestors."""
    line: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        try:
            pid = read_stat(pid, proc).parent
        except (OSError, ValueError):
            break
    return frozenset(line)


def describe(found: Found, server_header: str = "", proc: Path = PROC) -> ServerFacts:
    """Facts of the found server. Runs nginx or HAProxy to print its version if that is safe (asyncli/model/trust.py)."""
    version = oneline(server_header)[:80] or None
    if not found.pids:
        return ServerFacts(version=version, hidden=found.hidden)
    pid = found.pids[0]
    try:
        name: str | None = process_name(read_stat(pid, proc), proc)
    except (OSError, ValueError):
        name = None
    exe = link(pid, "exe", proc)
    built, not_asked = "", None
    if exe and name in _VERSION_FLAGS:
        answer = ask_server(exe, _VERSION_FLAGS[name], pid, proc)
        built = answer.text
        if answer.why_not:
            not_asked = server_program_not_run(f"{exe} {_VERSION_FLAGS[name]}", answer.why_not, answer.distrusted)
    version_match = re.search(r"version: (\S+)|^HA-?Proxy version ([\d.]+)", built, re.MULTILINE)
    if version_match and (version is None or "/" not in version):
        version = version_match[1] or f"haproxy/{version_match[2]}"
    ours = name == "nginx" and _shares_mounts(pid, proc)
    config = config_path(command_line(pid, proc), built, link(pid, "cwd", proc)) if ours else None
    return ServerFacts(
        pid=pid,
        pids=found.pids,
        name=name,
        exe=exe,
        version=version,
        config_path=config,
        found_by=found.how,
        config_hash=_fingerprint(config, user_of(pid, proc)),
        not_asked=not_asked,
    )


def config_path(command: str, built: str, cwd: str | None) -> str | None:
    """nginx's configuration file: ``-c`` of its command line, else the default of ``nginx -V``.

    A relative path is below the prefix (``-p``, else the built-in one), as in ngx_conf_full_name.
    """
    match = re.search(r"(?<=\s)-c\s*(\S+)", command)
    prefix = re.search(r"(?<=\s)-p\s*(\S+)", command) or re.search(r"--prefix=(\S+)", built)
    default = re.search(r"--conf-path=(\S+)", built)
    path = match[1] if match else default[1] if default else None
    if path is None or os.path.isabs(path):
        return path
    under = prefix[1] if prefix else ""
    if not os.path.isabs(under) and cwd is None:
        return None
    return os.path.normpath(os.path.join(cwd or "/", under, path))


def _fingerprint(path: str | None, user: User | None) -> str | None:
    if path is None:
        return None
    try:
        return hashlib.sha256(read_regular(path, _LONGEST_CONFIG, user)).hexdigest()[:16]
    except OSError:
        return None


def _shares_mounts(pid: int, proc: Path) -> bool:
    """Whether the process shares our mount namespace: in a container the same path is another file."""
    mounts = link(pid, "ns/mnt", proc)
    return mounts is not None and mounts == link("self", "ns/mnt", proc)
