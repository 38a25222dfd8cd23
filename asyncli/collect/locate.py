"""Finds the server's processes: those that the plan names, or that hold the socket listening on the
plan's port.

Done once at the start (and again if the server ends), never at a tick: listing descriptors creates
dentries.
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

from asyncli.collect.holders import INITS, Listening, listening_at, sockets_held
from asyncli.collect.listening import listens_elsewhere
from asyncli.collect.namespaces import has_target, listening_elsewhere
from asyncli.collect.procfs import (
    PROC,
    ancestors,
    command_line,
    link,
    parents,
    readable_stat,
    shares_namespace,
    tree,
)
from asyncli.collect.runtimes import runtime_of
from asyncli.findings.server import find_by_user, server_not_listening, server_program_not_run
from asyncli.model.errors import HostError
from asyncli.model.plan import Plan
from asyncli.model.records import Finding
from asyncli.model.runtimes import Runtime
from asyncli.model.text import oneline, printable, tidy
from asyncli.model.trust import User, ask_server, read_regular, user_of
from asyncli.model.values import Target

#: Programs that listen for a server in a container or elsewhere: their memory is not the server's.
FORWARDERS = frozenset({"docker-proxy", "rootlessport", "conmon", "kube-proxy", "sshd", "socat"})
_NAME_A_PROCESS = "name it with --server-pid, --server-pidfile or --server-name"
# HAProxy sends no Server header, and nginx may be configured not to.
_VERSION_FLAGS = {"nginx": "-V", "haproxy": "-v"}
# A pid file is one line; nginx's main configuration file is seldom more than 100 kB.
_LONGEST_PIDFILE = 4096
_LONGEST_CONFIG = 4 << 20


class Found(msgspec.Struct, frozen=True):
    """The server's root processes (nginx's master), or none and the reason."""

    pids: tuple[int, ...] = ()
    how: str = ""
    why_not: str = ""
    remedy: str = ""
    #: They exist, but belong to another user.
    hidden: bool = False
    #: They are on this host, in another network namespace, whose address is the plan's target.
    apart: bool = False


class MetricsSource(msgspec.Struct, frozen=True):
    """A page of the server's metrics. ``url``: without its login and query; ``products``: what it
    was recognised as; ``active_by``, ``descriptors_by``: its metrics of active connections, and of
    its process's descriptors, if those are used; ``alive_by``: the metric that a user has named for
    what is alive (--metrics-map live=..., heap=...); ``unusable``: metrics that a user has named,
    with values that cannot be theirs; ``cpu_ms``: what a reading cost at most, the server and
    asyncli together: the shortest that one took. None: it is not asked, but publishes.
    ``of_program``, ``of_pid``: whose page it is, if that is a program of the server's host that is
    not the server, of the page that says what is known of a runtime; else "" and 0.
    """

    url: str
    products: tuple[str, ...] = ()
    active_by: str | None = None
    descriptors_by: str | None = None
    alive_by: str | None = None
    unusable: tuple[str, ...] = ()
    interval_s: float = 1.0
    cpu_ms: float | None = None
    of_program: str = ""
    of_pid: int = 0

    def __post_init__(self) -> None:
        tidy(self)
        # An agent may send anything.
        products = tuple(printable(product) for product in self.products)
        msgspec.structs.force_setattr(self, "products", products)
        unusable = tuple(printable(written) for written in self.unusable)
        msgspec.structs.force_setattr(self, "unusable", unusable)


class ServerFacts(msgspec.Struct, frozen=True):
    """The server as found at the start, null if unknown. ``version``: as the server writes it,
    "nginx/1.22.1".
    """

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
    #: It is on this host, in another network namespace.
    apart: bool = False
    #: Why its program was not run to print its version.
    not_asked: Finding | None = None
    #: The configuration of the plan's target, if it was read: directive -> value.
    directives: dict[str, str] = {}
    #: What its programs run on; an unknown one by an agent of an earlier version.
    runtime: Runtime = Runtime()
    #: The pages of metrics that are read.
    metrics: tuple[MetricsSource, ...] = ()

    def __post_init__(self) -> None:
        tidy(self)

    def document(self, label: str | None = None) -> dict[str, object]:
        """The server as plain data, for the environment. ``label``: the lab's name for it."""
        document: dict[str, object] = {
            "label": label or self._label,
            "version": self.version,
            "pid": self.pid,
            "exe": self.exe,
            "hidden": self.hidden,
        }
        if len(self.pids) > 1:
            document["roots"] = len(self.pids)
        if self.runtime.kind != "":
            document["runtime"] = self.runtime.document()
        return document

    @property
    def _label(self) -> str:
        if self.version and self.version.startswith("asyncli/"):
            return "built-in server"
        return self.version or self.name or "the server"

    def record(self, label: str | None) -> dict[str, object]:
        """The server for the run file: :meth:`document`, the configuration's fingerprint, and the
        directives.
        """
        record = {**self.document(label), "config_hash": self.config_hash}
        if self.apart:
            record["apart"] = True
        if self.directives:
            record["directives"] = self.directives
        if self.metrics:
            record["metrics"] = msgspec.to_builtins(self.metrics)
        return record

    def differences(self, before: Mapping[str, Any]) -> list[str]:
        """The differences from an earlier :meth:`record`, without the pid. A fact is compared only
        if both have it; the fingerprint only if one has no directives.
        """
        facts = [("executable", before.get("exe"), self.exe)]
        earlier = before.get("directives")
        if earlier and self.directives:
            for name in dict.fromkeys([*earlier, *self.directives]):
                old = earlier.get(name, "not set")
                facts.append((name, old, self.directives.get(name, "not set")))
        else:
            facts.append(("configuration", before.get("config_hash"), self.config_hash))
        differences = []
        for name, old, new in facts:
            if old and new and old != new:
                differences.append(f"{name} {new}, before {old}")
        old = before.get("version")
        if old and self.version and _are_different_versions(str(old), self.version):
            differences.append(f"version {self.version}, before {old}")
        return differences


def _are_different_versions(old: str, new: str) -> bool:
    """Whether two versions differ. "nginx" matches nginx/1.22.1: a Server header may omit the
    number.
    """
    old_name, _, old_number = old.partition("/")
    new_name, _, new_number = new.partition("/")
    if old_name != new_name:
        return True
    return bool(old_number and new_number) and old_number != new_number


def find_server(plan: Plan, *, local: bool, ours: Collection[int] = (), proc: Path = PROC) -> Found:
    """The server that ``plan`` names or aims at. ``ours``: asyncli's own processes and their
    ancestors.

    Raises :class:`HostError` if the plan names no living process, or one of ``ours``: asyncli is in
    its tree.
    """
    if plan.names_server:
        server = _named_by(plan, ours, proc)
        is_apart = not local and has_target(server.pids[0], plan.targets, proc)
        return msgspec.structs.replace(server, apart=is_apart)
    if not local:
        return _out_of_sight(plan.targets, proc)
    return _from_ports(plan.targets, ours, proc)


def _out_of_sight(targets: Sequence[Target], proc: Path) -> Found:
    """Why the processes of a server are not known whose address is not of our network namespace."""
    elsewhere = listening_elsewhere(targets, proc)
    if not elsewhere:
        return Found(
            why_not="the server's address is not of this network namespace, and no process seen "
            "here listens at it: it is on another host, or in a container out of sight"
        )
    pid = topmost(min(elsewhere), (), proc)
    return Found(
        why_not="the server's address is not of this network namespace; another one of this host "
        f"has it, where {process_name(pid, proc) or 'a process'} (pid {pid}) listens",
        remedy=f"name it with --server-pid {pid}, if that is the server",
    )


def _named_by(plan: Plan, ours: Collection[int], proc: Path) -> Found:
    if plan.server_pid is not None:
        return _named(plan.server_pid, "--server-pid", ours, proc)
    if plan.server_pidfile is not None:
        flag = f"--server-pidfile {plan.server_pidfile}"
        return _named(_from_pidfile(plan.server_pidfile, flag), flag, ours, proc)
    name = plan.server_name or ""
    flag = f"--server-name {name}"
    return _named(_from_name(name, ours, proc), flag, ours, proc)


def _named(pid: int, flag: str, ours: Collection[int], proc: Path) -> Found:
    remedy = "give the pid of the server's master process"
    stat = readable_stat(pid, proc)
    if stat is None or stat.ended:
        raise HostError(f"{flag}: no process {pid} on this host; {remedy}")
    if pid in ours:
        raise HostError(
            f"{flag}: {process_name(pid, proc)} (pid {pid}) is asyncli "
            "or a process that started it, "
            f"so the memory and CPU of asyncli would count as the server's; {remedy}"
        )
    return Found((pid,), flag)


def _from_pidfile(path: str, flag: str) -> int:
    try:
        text = read_regular(path, _LONGEST_PIDFILE).decode("ascii", "replace").strip()
    except OSError as error:
        raise HostError(
            f"{flag}: cannot be read ({error.strerror}); name the server's pid file"
        ) from None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise HostError(
            f"{flag}: holds no process id; name the server's pid file, for example /run/nginx.pid"
        )
    return int(text)


def _from_name(name: str, ours: Collection[int], proc: Path) -> int:
    """The root of the one tree of that name; one of ``ours`` only if no other has it."""
    stats = {stat.pid: stat for stat in parents(proc) if not stat.ended}
    # The kernel truncates a process's name to 15 bytes.
    named = set()
    for pid, stat in stats.items():
        if stat.name == name[:15] or os.path.basename(link(pid, "exe", proc) or "") == name:
            named.add(pid)
    others = named.difference(ours)
    roots = sorted(pid for pid in others if stats[pid].parent not in others)
    if not roots:
        roots = sorted(named)[:1]
    if not roots:
        raise HostError(
            f"--server-name {name}: no such process on this host; "
            "write its name as `ps -e` shows it"
        )
    if len(roots) > 1:
        listed = ", ".join(map(str, roots[:8]))
        raise HostError(
            f"--server-name {name}: {len(roots)} process trees (pids {listed}); "
            "name one with --server-pid"
        )
    return roots[0]


def doubt(
    plan: Plan, found: Found, *, ours: Collection[int] = (), proc: Path = PROC
) -> Finding | None:
    """Why the process that ``plan`` names may not be the server on this host: no process of its
    tree (from its topmost ancestor of the same name) holds a socket at the targets, while another
    does, or while none of them has the user of the sockets.

    None where the holder forwards connections or starts services, and for a process with its own
    network, as in a container.
    """
    if not plan.names_server:
        return None
    (pid,) = found.pids
    at = listening_at(plan.targets, proc)
    if shares_namespace(pid, "net", proc) is False:
        return None
    try:
        family = tree([readable_stat(topmost(pid, ours, proc), proc)], proc).keys()
    except OSError:
        return None
    if family & at.holders:
        return None
    if any(any(sockets_held(member, at.users, proc)) for member in family):
        return None
    holders = []
    for holder in sorted(at.holders - set(ours)):
        holders.append({"name": process_name(holder, proc) or "?", "pid": holder})
    if any(holder["name"] in FORWARDERS | INITS for holder in holders):
        return None
    users = _foreign_users(at, family, proc)
    if not holders and not users:
        return None
    name = process_name(pid, proc) or "?"
    return server_not_listening(found.how, name, pid, at.where, holders, users)


def _foreign_users(at: Listening, family: Collection[int], proc: Path) -> list[int]:
    """The users that opened the sockets, if their holders are unknown and no process of ``family``
    has one of these users.
    """
    if at.holders:
        return []
    # Root may have opened the sockets of another user's process.
    users_of_family = {0}.union(*(user_of(member, proc).all for member in family))
    if not users_of_family.isdisjoint(at.openers):
        return []
    return sorted(at.openers)


def _from_ports(targets: Sequence[Target], ours: Collection[int], proc: Path) -> Found:
    at = listening_at(targets, proc)
    where = at.where
    if not at.users and not at.holders:
        elsewhere = listens_elsewhere(at.places, proc)
        if elsewhere is not None:
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
    forwarders = FORWARDERS.intersection(process_name(pid, proc) or "" for pid in holders)
    if forwarders:
        why_not = f"{min(forwarders)} listens on {where} and forwards connections to the server"
        return Found(why_not=why_not, remedy=_NAME_A_PROCESS)
    roots = {topmost(pid, ours, proc) for pid in holders}
    return Found(tuple(sorted(roots)), f"listens on {where}")


def _unreadable(where: str, users: Collection[int]) -> Found:
    """Why the holder of the listening socket was not found: its descriptors are hidden. ``users``
    opened it.
    """
    listener = f"the process that listens on {where}"
    if os.geteuid() == 0:
        return Found(
            why_not=f"{listener} is in another namespace, or asyncli lacks CAP_SYS_PTRACE, "
            "so its descriptors are hidden",
            remedy=f"run asyncli in that namespace with CAP_SYS_PTRACE, or {_NAME_A_PROCESS}",
        )
    why_not = f"{listener} belongs to another user, so its descriptors are hidden"
    return Found(why_not=why_not, remedy=find_by_user(users), hidden=True)


def process_name(pid: int, proc: Path = PROC) -> str | None:
    """The executable's file name, or the process's name if that is unreadable; None if it has ended
    or is hidden.

    If the process was started by a link to the executable, the link's name: Debian's redis-server
    links to redis-check-rdb. Not if that name is only the beginning of the file name.
    """
    stat = readable_stat(pid, proc)
    if stat is None:
        return None
    exe = link(pid, "exe", proc)
    if exe is None:
        return stat.name
    name = os.path.basename(exe)
    if not name.startswith(stat.name):
        with contextlib.suppress(OSError):
            beside = f"{proc}/{pid}/root{os.path.dirname(exe)}/{stat.name}"
            if os.path.samefile(beside, f"{proc}/{pid}/exe"):
                return stat.name
    return name


def programs_of(pids: Collection[int], proc: Path = PROC) -> dict[str, int]:
    """The different programs of these processes, by name: the lowest pid of each that lives."""
    programs: dict[str, int] = {}
    for pid in sorted(pids):
        name = process_name(pid, proc)
        if name is not None:
            programs.setdefault(name, pid)
    return dict(sorted(programs.items()))


def topmost(pid: int, stop: Collection[int], proc: Path = PROC) -> int:
    """The topmost ancestor with the same name, below ``stop``: asyncli may have started the
    server.
    """
    top = pid
    name = process_name(pid, proc)
    for stat in ancestors(pid, proc):
        if stat.pid in stop or process_name(stat.pid, proc) != name:
            break
        top = stat.pid
    return top


def describe(found: Found, server_header: str = "", proc: Path = PROC) -> ServerFacts:
    """Facts of the found server. Runs nginx or HAProxy to print its version if that is safe
    (asyncli/model/trust.py).
    """
    version = oneline(server_header)[:80] or None
    if not found.pids:
        return ServerFacts(version=version, hidden=found.hidden)
    programs = programs_of(found.pids, proc)
    if len(programs) > 1:
        # No program, version or configuration is that of all connections.
        return ServerFacts(
            pid=found.pids[0],
            pids=found.pids,
            name=f"several programs ({', '.join(programs)})",
            found_by=found.how,
            apart=found.apart,
        )
    pid = found.pids[0]
    name = process_name(pid, proc)
    exe = link(pid, "exe", proc)
    printed = ""
    not_asked = None
    if exe and name in _VERSION_FLAGS:
        flag = _VERSION_FLAGS[name]
        answer = ask_server(exe, flag, pid, proc)
        printed = answer.text
        if answer.why_not:
            not_asked = server_program_not_run(f"{exe} {flag}", answer.why_not, answer.distrusted)
    if version is None or "/" not in version:
        version = _version_in(printed) or version
    config = _own_config(pid, printed, proc) if name == "nginx" else None
    return ServerFacts(
        pid=pid,
        pids=found.pids,
        name=name,
        exe=exe,
        version=version,
        config_path=config,
        found_by=found.how,
        apart=found.apart,
        config_hash=_fingerprint(config, user_of(pid, proc)),
        not_asked=not_asked,
        runtime=runtime_of(pid, proc),
    )


def _version_in(printed: str) -> str | None:
    """The version in what ``nginx -V`` or ``haproxy -v`` printed."""
    match = re.search(r"version: (\S+)|^HA-?Proxy version ([\d.]+)", printed, re.MULTILINE)
    if match is None:
        return None
    return match[1] or f"haproxy/{match[2]}"


def _own_config(pid: int, printed: str, proc: Path) -> str | None:
    """The path of nginx's configuration file, if it names the same file for this process."""
    # A worker's title names no file.
    master = topmost(pid, (), proc)
    path = config_path(command_line(master, proc), printed, link(master, "cwd", proc))
    if path is None:
        return None
    if shares_namespace(pid, "mnt", proc) or _is_ours(path, pid, proc):
        return path
    return None


def config_path(command: str, built: str, cwd: str | None) -> str | None:
    """nginx's configuration file: ``-c`` of its command line, else the default of ``nginx -V``.

    A relative path is below the prefix (``-p``, else the built-in one), as in ngx_conf_full_name.
    """
    match = re.search(r"(?<=\s)-c\s*(\S+)", command)
    prefix = re.search(r"(?<=\s)-p\s*(\S+)", command) or re.search(r"--prefix=(\S+)", built)
    default = re.search(r"--conf-path=(\S+)", built)
    named = match or default
    if named is None:
        return None
    path = named[1]
    if os.path.isabs(path):
        return path
    folder = prefix[1] if prefix else ""
    if not os.path.isabs(folder) and cwd is None:
        return None
    return os.path.normpath(os.path.join(cwd or "/", folder, path))


def _is_ours(path: str, pid: int, proc: Path) -> bool:
    """Whether the process has our file at ``path``: not so in a container, but under `ip netns
    exec`.
    """
    try:
        return os.path.samefile(path, f"{proc}/{pid}/root{path}")
    except OSError:
        return False


def _fingerprint(path: str | None, user: User | None) -> str | None:
    if path is None:
        return None
    try:
        return hashlib.sha256(read_regular(path, _LONGEST_CONFIG, user)).hexdigest()[:16]
    except OSError:
        return None
