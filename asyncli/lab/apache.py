"""A private Apache for a soak, with a process for each connection (prefork) or with threads that wait for many (event)."""

from __future__ import annotations

import grp
import math
import os
import pwd
import re
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from asyncli.errors import HostError
from asyncli.lab import ports
from asyncli.lab.base import LabServer, ask, backlog, quoted
from asyncli.lab.executables import descriptor_limit, programs
from asyncli.trust import ask_program

#: The page of the classic comparison of short and persistent connections: Apache 2.0's default page.
PAGE_BYTES = 1_456
# A process takes 0.3 MB and one of the kernel's 32,768 ids: with more the test measures the host.
_MOST_PREFORK = 4_000
# Apache's "common".
_LOG_FORMAT = r'"%h %l %u %t \"%r\" %>s %b"'
# Apache's default of StartServers and MinSpareServers (mod mpm_common).
_STARTED = 5
# Status polls and the readiness probe each take a process in prefork.
_POLLERS = 8
# When more connections need a thread at once than there are idle ones, the event MPM closes all its idle connections (event.c,
# "kill'em all"); a new connection holds a thread until its first request. 256 threads serve the heartbeats of a quarter of a
# second at 1,000 a second.
_THREADS = 256
# A child's other descriptors: listeners, epoll, pipes, logs, the lock.
_OWN_DESCRIPTORS = 64
_MODULE_FOLDERS = (
    "/usr/lib/apache2/modules",
    "/usr/lib64/httpd/modules",
    "/usr/lib/httpd/modules",
    "/usr/libexec/apache2",
    "/usr/local/apache2/modules",
)


class ApacheBinary(NamedTuple):
    """An Apache program: ``version_text`` as ``Apache/2.4.62``, where its modules are, and those it was built with."""

    path: str
    version_text: str
    modules: Path | None
    built_in: frozenset[str]


class EventSizes(NamedTuple):
    """How the event MPM is cut: processes, threads in each, and AsyncRequestWorkerFactor."""

    processes: int
    threads: int
    factor: float


def parse_version(text: str) -> str | None:
    """``Apache/2.4.62`` from what ``apache2 -v`` prints; None where it is no Apache of 2.4 or later."""
    match = re.search(r"Server version:\s*(Apache/(\d+)\.(\d+)\S*)", text)
    return match[1] if match and (int(match[2]), int(match[3])) >= (2, 4) else None


def find_apache() -> ApacheBinary | None:
    """The Apache (2.4 or later) of this host, or None."""
    for path, text in programs("-v", "apache2", "httpd"):
        if version := parse_version(text):
            folder = next((Path(one) for one in _MODULE_FOLDERS if Path(one, "mod_status.so").is_file()), None)
            built_in = frozenset(re.findall(r"^\s*(\w+)\.c$", ask_program(path, "-l"), re.MULTILINE))
            return ApacheBinary(path, version, folder, built_in)
    return None


def event_sizes(connections: int, nofile: int, processes: int | None = None) -> EventSizes:
    """Processes, threads and factor so that the event MPM can hold ``connections``; :class:`HostError` where it cannot.

    A child accepts while it has fewer connections than ThreadsPerChild + AsyncRequestWorkerFactor x idle threads (the
    documentation of the event MPM), so at most (AsyncRequestWorkerFactor + 1) x ThreadsPerChild. All children accept from
    one queue, and nothing deals evenly: a child may fill up while another is empty. So that bound is put where a child's
    descriptors end - one that meets EMFILE ends, with all it holds - and there are as many children as then hold a tenth
    more than asked for. Few on purpose: a child's threads use every CPU, and only the counts of the child that serves the
    status page are up to date on it.
    """
    most = nofile - _OWN_DESCRIPTORS
    threads = min(_THREADS, most // 2)
    wanted = math.ceil(1.1 * connections) + _POLLERS
    count = processes or max(1, math.ceil(wanted / max(1, most)))
    if threads < 1 or count * most < connections + _POLLERS or count * threads > 100_000:
        asked = f"{count:,} process{'es' if count > 1 else ''} of {nofile:,} descriptors"
        mend = "leave --workers out" if processes else "raise the hard limit (ulimit -Hn, LimitNOFILE=) or ask for fewer"
        raise HostError(f"apache-event cannot hold {connections:,} connections in {asked}; {mend}")
    # Apache keeps the factor in sixteenths; rounding down keeps the bound below the descriptors.
    return EventSizes(count, threads, math.floor(16 * (most / threads - 1)) / 16)


class LabApache(LabServer):
    """What both Apaches share. ``page_bytes`` is the page that every path answers, ``keepalive_requests`` 0 is without end
    (MaxKeepAliveRequests: so many after the first).

    Raises :class:`HostError` if there is no Apache or it does not start. Started by root, its children run as ``nobody``: Apache
    refuses to serve as root. They must be able to reach TMPDIR then.
    """

    template = "apache.conf"
    status_path = "/server-status?auto"
    speaks_tls = True
    grave = re.compile(r"\[(\w+:)?(emerg|alert|crit|error)\]|\(98\)|Syntax error|AH00(526|014)")
    stamp = re.compile(r"^(\[[^]]*\] ?)+|^(apache2|httpd): ")
    complains_in = ("stderr", "error.log")
    #: "prefork" or "event".
    mpm: ClassVar[str]
    #: After so long the status page ends a connection.
    status_timeout: ClassVar[str]

    def __init__(
        self, *common: Any, keepalive_requests: int = 0, page_bytes: int = PAGE_BYTES, one_listener: bool = False,
        access_log: bool = False, keepalive: bool = True, **more: Any
    ) -> None:  # fmt: skip
        super().__init__(*common, **more)
        self._access_log, self._keepalive = access_log, keepalive
        self._directives: dict[str, float] = {}
        self._requests = keepalive_requests
        self._one_listener = one_listener
        self.page_bytes = page_bytes
        self._binary: ApacheBinary | None = None

    @property
    def label(self) -> str:
        """For example ``Apache/2.4.62 (prefork)``."""
        return f"{self._binary.version_text} ({self.mpm})" if self._binary else self.name

    async def _prepare(self) -> None:
        self._binary = find_apache()
        if self._binary is None:
            raise HostError(f"{self.name}: no Apache 2.4 on this host; install it (apt-get install apache2)")
        self._workers, self._directives = self._cut()

    @abstractmethod
    def _cut(self) -> tuple[int, dict[str, float]]:
        """How many processes it takes, and the MPM's own directives."""

    def _values(self) -> Mapping[str, object]:
        folder = self.config_path.parent
        status_port = self.status_port
        status_here, status_listen = "", f"Listen 127.0.0.1:{status_port}"
        if self._one_listener:
            # No listener for the status page's own virtual host, so nobody reaches it.
            self.status_port = self.port
            status_here = '    <Location "/server-status">\n        SetHandler server-status\n    </Location>\n'
            status_listen = "# (with one listener it is the target's own)"
        return {
            "folder": quoted(folder),
            "mutex": quoted(f"default:{folder}"),
            "pid_file": quoted(folder / "apache.pid"),
            "error_log": quoted(folder / "error.log"),
            "page": quoted(folder / "page.html"),
            "user_lines": _user_lines(),
            "modules": self._modules(),
            "mpm_lines": "\n".join(f"{name} {value:g}" for name, value in self._directives.items()),
            "backlog": backlog(),
            "access_log": f"CustomLog {quoted(folder / 'access.log')} {_LOG_FORMAT}" if self._access_log else "# (no access log)",
            "keepalive": "On" if self._keepalive else "Off",
            "keepalive_timeout": self._timeout_s,
            "keepalive_requests": self._requests,
            # Not below Apache's own when a test sets a short KeepAliveTimeout.
            "timeout": max(60, self._timeout_s),
            "listen": ports.host_port(self.address, self.port),
            "tls_lines": f"SSLEngine on\n    SSLCertificateFile {quoted(folder / 'server.pem')}" if self.tls else "# (no TLS)",
            "protocols": f"{'h2' if self.tls else 'h2c'} http/1.1" if self.http2 else "http/1.1",
            "status_port": status_port,
            "status_here": status_here,
            "status_listen": status_listen,
            "status_timeout": self.status_timeout,
        }

    def _modules(self) -> str:
        assert self._binary is not None
        lines = []
        chosen = {"ssl": self.tls, "http2": self.http2, "log_config": self._access_log}
        more = [name for name, wanted in chosen.items() if wanted]
        for name in (f"mpm_{self.mpm}", "unixd", "authz_core", "alias", "status", *more):
            if {f"mod_{name}", self.mpm if name.startswith("mpm_") else f"mod_{name}"} & self._binary.built_in:
                continue
            file = self._binary.modules and self._binary.modules / f"mod_{name}.so"
            if file is None or not file.is_file():
                where = self._binary.modules or "any of the usual folders"
                raise HostError(
                    f"{self.name}: {self._binary.path} has no mod_{name} (looked in {where}); install the distribution's apache2"
                )
            lines.append(f"LoadModule {name}_module {quoted(file)}")
        return "\n".join(lines)

    def _files(self) -> Mapping[str, bytes]:
        return {"page.html": page(self.page_bytes)}

    def _argv(self) -> list[str]:
        assert self._binary is not None
        folder = self.config_path.parent
        return [self._binary.path, "-D", "FOREGROUND", "-d", str(folder), "-f", str(self.config_path)]

    async def _answers(self) -> bool:
        answer = (await ask(self.status_port, self.status_path)).decode("latin-1")
        slots = [int(number) for number in re.findall(r"^(?:Busy|Idle)Workers: (\d+)", answer, re.MULTILINE)]
        # Of prefork so many start; of event all of them.
        if len(slots) != 2 or sum(slots) < self._directives.get("MinSpareServers", self._directives["MaxRequestWorkers"]):
            return False
        if b" 403 " in (await ask(self.port, "/", ports.reachable(self.address)))[:16]:
            raise HostError(
                f"{self.name}: its processes run as nobody and cannot read {self.config_path.parent}; "
                "set TMPDIR to a folder that every user may enter, for example /tmp"
            )
        return True


class LabApachePrefork(LabApache):
    """Apache's prefork MPM: a process serves one connection until its end.

    All processes start before the first connection, so they are in the fixed cost and a ramp does not wait for forks (Apache
    starts at most 32 a second on demand). At most 4,000.

    ``one_listener``: the status page is at the target's port. Children then accept without the lock that several ports need
    ("Accept Serialization" of Apache's performance tuning guide), for which new connections wait long on busy CPUs.
    ``grows``: only 5 processes start, and 5 to 10 are spare, Apache's own defaults.
    """

    name = "apache-prefork"
    mpm = "prefork"
    usual = 256  # Apache's own default of MaxRequestWorkers
    status_timeout = "1h"

    def __init__(self, *common: Any, grows: bool = False, **more: Any) -> None:
        super().__init__(*common, **more)
        self._grows = grows

    def _cut(self) -> tuple[int, dict[str, float]]:
        count = self._asked_workers or self.connections + _POLLERS
        if count > _MOST_PREFORK + _POLLERS:
            raise HostError(
                f"apache-prefork needs a process for each of {self.connections:,} connections, and the lab starts at most "
                f"{_MOST_PREFORK:,}; ask for fewer (-c {_MOST_PREFORK}), or use apache-event"
            )
        directives = dict.fromkeys(("ServerLimit", "MaxRequestWorkers"), float(count))
        start = _STARTED if self._grows else count
        # Apache wants one spare process more at most than at least.
        most = 2 * _STARTED if self._grows else count + 1
        return count, directives | {"StartServers": start, "MinSpareServers": start, "MaxSpareServers": most}


class LabApacheEvent(LabApache):
    """Apache's event MPM: a listener thread in each process waits for its idle connections, and threads serve requests.

    ``workers`` processes; by default as few as their descriptors allow. With more than one, the status page's connections are not
    up to date (see configs/apache.conf).
    """

    name = "apache-event"
    mpm = "event"
    # In prefork mod_http2 serves one request of a connection at a time, and warns of that.
    speaks_http2 = True
    # One process holds them under a descriptor limit of 20,000, and the status page counts them.
    usual = 10_000
    status_timeout = "2500ms"

    def _cut(self) -> tuple[int, dict[str, float]]:
        processes, threads, factor = event_sizes(self.connections, descriptor_limit(), self._asked_workers)
        everything = processes * threads
        return processes, {
            "ServerLimit": processes,
            "StartServers": processes,
            "ThreadLimit": threads,
            "ThreadsPerChild": threads,
            "MaxRequestWorkers": everything,
            # All start at once, and none ends for being idle, which would close its connections.
            "MinSpareThreads": everything,
            "MaxSpareThreads": everything,
            # (factor + 1) x ThreadsPerChild: what a process may hold, just below its descriptors.
            "AsyncRequestWorkerFactor": factor,
        }


def page(size: int) -> bytes:
    """A page of HTML of exactly ``size`` bytes (shorter than its tags: cut)."""
    before, after = b"<html><body><h1>It works!</h1><!-- ", b" --></body></html>\n"
    return (before + b"." * max(0, size - len(before) - len(after)) + after)[:size]


def _user_lines() -> str:
    """The children's user as root: Apache refuses root (unless built with BIG_SECURITY_HOLE). Their PSS then needs
    CAP_SYS_PTRACE, which root lacks in some containers."""
    if os.geteuid() != 0:
        return "# (User: only root may set it; children run as the user that started them)"
    try:
        nobody = pwd.getpwnam("nobody")
        return f"User nobody\nGroup {grp.getgrgid(nobody.pw_gid).gr_name}"
    except KeyError:
        raise HostError(
            "apache: this host has no user nobody to serve as, and Apache refuses root; run as another user"
        ) from None
