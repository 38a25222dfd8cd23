"""A private Apache for a soak: a process per connection (prefork), or threads that each wait for
many connections (event).
"""

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

from asyncli.lab import ports
from asyncli.lab.base import LabServer, ask, backlog, quoted
from asyncli.lab.executables import descriptor_limit, programs
from asyncli.model.errors import HostError
from asyncli.model.trust import ask_program
from asyncli.model.units import format_many, tenth_more

#: The page of the classic comparison of short and persistent connections: Apache 2.0's default
#: page.
PAGE_BYTES = 1_456
# A process takes 0.3 MB and one of the kernel's 32,768 process ids: beyond this the test measures
# the host.
_MOST_PREFORK = 4_000
# Apache's "common".
_LOG_FORMAT = r'"%h %l %u %t \"%r\" %>s %b"'
# Apache's default of StartServers and MinSpareServers (mod mpm_common).
_STARTED = 5
# Status polls and the readiness probe each take a process in prefork.
_POLLERS = 8
# When more connections need a thread than there are idle threads, the event MPM closes all its idle
# connections (event.c, "kill'em all"); a new connection holds a thread until its first request. At
# 1,000 heartbeats a second 256 threads serve those of a quarter of a second.
_THREADS = 256
_MOST_THREADS_IN_ALL = 100_000
# A child's descriptors for listeners, epoll, pipes, logs and the lock.
_OWN_DESCRIPTORS = 64
_MODULE_FOLDERS = (
    "/usr/lib/apache2/modules",
    "/usr/lib64/httpd/modules",
    "/usr/lib/httpd/modules",
    "/usr/libexec/apache2",
    "/usr/local/apache2/modules",
)


class ApacheBinary(NamedTuple):
    """An Apache program: ``version_text`` as ``Apache/2.4.62``, the folder of its modules, and the
    modules built in.
    """

    path: str
    version_text: str
    modules: Path | None
    built_in: frozenset[str]


def parse_version(text: str) -> str | None:
    """``Apache/2.4.62`` from the output of ``apache2 -v``; None unless it is Apache 2.4 or
    later.
    """
    match = re.search(r"Server version:\s*(Apache/(\d+)\.(\d+)\S*)", text)
    if match is None or (int(match[2]), int(match[3])) < (2, 4):
        return None
    return match[1]


def find_apache() -> ApacheBinary | None:
    """The Apache (2.4 or later) of this host, or None."""
    for path, text in programs("-v", "apache2", "httpd"):
        version = parse_version(text)
        if version is not None:
            listed = ask_program(path, "-l")
            built_in = frozenset(re.findall(r"^\s*(\w+)\.c$", listed, re.MULTILINE))
            return ApacheBinary(path, version, _module_folder(), built_in)
    return None


def _module_folder() -> Path | None:
    for folder in _MODULE_FOLDERS:
        if Path(folder, "mod_status.so").is_file():
            return Path(folder)
    return None


def event_sizes(
    connections: int, nofile: int, processes: int | None = None
) -> tuple[int, int, float]:
    """Processes, threads in each and AsyncRequestWorkerFactor for ``connections`` in the event MPM.
    Raises :class:`HostError`.

    A child accepts while it has fewer connections than ThreadsPerChild + AsyncRequestWorkerFactor x
    idle threads (the documentation of the event MPM), so at most (AsyncRequestWorkerFactor + 1) x
    ThreadsPerChild. All children accept from one queue, which does not distribute evenly: one may
    fill up while another is empty. A child that meets EMFILE exits with all its connections. So the
    bound is just below a child's descriptor limit, and there are as many children as hold a tenth
    more than ``connections``. Few is better: a child's threads use every CPU, and the status page
    is up to date only on the child that serves it.
    """
    per_process = nofile - _OWN_DESCRIPTORS
    threads = min(_THREADS, per_process // 2)
    wanted = tenth_more(connections) + _POLLERS
    count = processes or max(1, math.ceil(wanted / max(1, per_process)))
    are_enough = count * per_process >= connections + _POLLERS
    if threads < 1 or not are_enough or count * threads > _MOST_THREADS_IN_ALL:
        size = f"{format_many(count, 'process')} of {nofile:,} descriptors"
        remedy = "raise the hard limit (ulimit -Hn, LimitNOFILE=) or ask for fewer"
        if processes:
            remedy = "leave --workers out"
        raise HostError(f"apache-event cannot hold {connections:,} connections in {size}; {remedy}")
    # Apache rounds the factor to sixteenths; rounding down stays below the descriptor limit.
    return count, threads, math.floor(16 * (per_process / threads - 1)) / 16


class LabApache(LabServer):
    """What both Apaches share. ``page_bytes``: the size of the page at every path;
    ``keepalive_requests`` 0: no limit (MaxKeepAliveRequests counts those after the first).

    Raises :class:`HostError` if there is no Apache or it does not start. Started by root, its
    children run as ``nobody``, since Apache refuses to serve as root; they need access to TMPDIR
    then.
    """

    template = "apache.conf"
    status_path = "/server-status?auto"
    speaks_tls = True
    error_pattern = re.compile(
        r"\[(\w+:)?(emerg|alert|crit|error)\]|\(98\)|Syntax error|AH00(526|014)"
    )
    prefix_pattern = re.compile(r"^(\[[^]]*\] ?)+|^(apache2|httpd): ")
    log_names = ("stderr", "error.log")
    #: "prefork" or "event".
    mpm: ClassVar[str]
    #: The keep-alive timeout of the status page.
    status_timeout: ClassVar[str]

    def __init__(
        self,
        *common: Any,
        keepalive_requests: int = 0,
        page_bytes: int = PAGE_BYTES,
        one_listener: bool = False,
        access_log: bool = False,
        keepalive: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(*common, **more)
        self._access_log = access_log
        self._keepalive = keepalive
        self._directives: dict[str, float] = {}
        self._requests = keepalive_requests
        self._one_listener = one_listener
        self.page_bytes = page_bytes
        self._binary: ApacheBinary | None = None

    @property
    def label(self) -> str:
        """For example ``Apache/2.4.62 (prefork)``."""
        if self._binary is None:
            return self.name
        return f"{self._binary.version_text} ({self.mpm})"

    async def _prepare(self) -> None:
        self._binary = find_apache()
        if self._binary is None:
            raise HostError(
                f"{self.name}: no Apache 2.4 on this host; install it (apt-get install apache2)"
            )
        self._workers, self._directives = self._size()

    @abstractmethod
    def _size(self) -> tuple[int, dict[str, float]]:
        """The number of processes, and the MPM's directives."""

    def _values(self) -> Mapping[str, object]:
        folder = self.config_path.parent
        status_port = self.status_port
        status_here = ""
        status_listen = f"Listen 127.0.0.1:{status_port}"
        if self._one_listener:
            # The status page's own virtual host has no listener and is unreachable.
            self.status_port = self.port
            status_here = (
                '    <Location "/server-status">\n'
                "        SetHandler server-status\n"
                "    </Location>\n"
            )
            status_listen = "# (with one listener it is the target's own)"
        return {
            "folder": quoted(folder),
            "mutex": quoted(f"default:{folder}"),
            "pid_file": quoted(folder / "apache.pid"),
            "error_log": quoted(folder / "error.log"),
            "page": quoted(folder / "body.html"),
            "user_lines": _user_lines(),
            "modules": self._modules(),
            "mpm_lines": "\n".join(f"{name} {value:g}" for name, value in self._directives.items()),
            "backlog": backlog(),
            "access_log": self._log_line(),
            "keepalive": "On" if self._keepalive else "Off",
            "keepalive_timeout": self._timeout_s,
            "keepalive_requests": self._requests,
            # At least Apache's default, for tests with a short KeepAliveTimeout.
            "timeout": max(60, self._timeout_s),
            "listen": ports.host_port(self.address, self.port),
            "tls_lines": self._tls_lines(),
            "protocols": self._protocols(),
            "status_port": status_port,
            "status_here": status_here,
            "status_listen": status_listen,
            "status_timeout": self.status_timeout,
        }

    def _log_line(self) -> str:
        if not self._access_log:
            return "# (no access log)"
        return f"CustomLog {quoted(self.config_path.parent / 'access.log')} {_LOG_FORMAT}"

    def _tls_lines(self) -> str:
        if not self.tls:
            return "# (no TLS)"
        pem = quoted(self.config_path.parent / "server.pem")
        return f"SSLEngine on\n    SSLCertificateFile {pem}"

    def _protocols(self) -> str:
        if not self.http2:
            return "http/1.1"
        return "h2 http/1.1" if self.tls else "h2c http/1.1"

    def _modules(self) -> str:
        """The directives that load the modules that are not built in."""
        names = [f"mpm_{self.mpm}", "unixd", "authz_core", "alias", "status"]
        if self.tls:
            names.append("ssl")
        if self.http2:
            names.append("http2")
        if self._access_log:
            names.append("log_config")
        lines = []
        for name in names:
            if not self._is_built_in(name):
                lines.append(f"LoadModule {name}_module {quoted(self._module_file(name))}")
        return "\n".join(lines)

    def _is_built_in(self, name: str) -> bool:
        assert self._binary is not None
        built_in = self._binary.built_in
        # An MPM that is built in is listed as prefork.c, others as mod_ssl.c.
        return f"mod_{name}" in built_in or (name == f"mpm_{self.mpm}" and self.mpm in built_in)

    def _module_file(self, name: str) -> Path:
        assert self._binary is not None
        folder = self._binary.modules
        if folder is not None:
            file = folder / f"mod_{name}.so"
            if file.is_file():
                return file
        searched = folder or "any of the usual folders"
        raise HostError(
            f"{self.name}: {self._binary.path} has no mod_{name} (looked in {searched}); "
            "install the distribution's apache2"
        )

    def _files(self) -> Mapping[str, bytes]:
        return {"body.html": page(self.page_bytes)}

    def _argv(self) -> list[str]:
        assert self._binary is not None
        folder = self.config_path.parent
        return [
            self._binary.path,
            "-D",
            "FOREGROUND",
            "-d",
            str(folder),
            "-f",
            str(self.config_path),
        ]

    async def _is_ready(self) -> bool:
        answer = (await ask(self.status_port, self.status_path)).decode("latin-1")
        slots = re.findall(r"^(?:Busy|Idle)Workers: (\d+)", answer, re.MULTILINE)
        # prefork starts with the spare ones, event with all.
        at_start = self._directives.get("MinSpareServers", self._directives["MaxRequestWorkers"])
        if len(slots) != 2 or sum(map(int, slots)) < at_start:
            return False
        if b" 403 " in (await ask(self.port, "/", ports.reachable(self.address)))[:16]:
            raise HostError(
                f"{self.name}: its processes run as nobody and cannot read "
                f"{self.config_path.parent}; set TMPDIR to a folder that every user may enter, "
                "for example /tmp"
            )
        return True


class LabApachePrefork(LabApache):
    """Apache's prefork MPM: each process serves one connection until that ends.

    All processes, at most 4,000, start before the first connection: they are part of the fixed
    cost, and the ramp does not wait for forks (Apache starts at most 32 a second on demand).

    ``one_listener``: the status page is at the target's port. Children then accept without the lock
    that several ports need ("Accept Serialization" of Apache's performance tuning guide); on busy
    CPUs new connections wait long for that lock. ``grows``: Apache's own defaults, 5 processes at
    the start and 5 to 10 spare.
    """

    name = "apache-prefork"
    mpm = "prefork"
    default_size = 256  # Apache's own default of MaxRequestWorkers
    status_timeout = "1h"

    def __init__(self, *common: Any, grows: bool = False, **more: Any) -> None:
        super().__init__(*common, **more)
        self._grows = grows

    def _size(self) -> tuple[int, dict[str, float]]:
        count = self._asked_workers or self.connections + _POLLERS
        if count > _MOST_PREFORK + _POLLERS:
            raise HostError(
                f"apache-prefork needs a process for each of {self.connections:,} connections, "
                f"and the lab starts at most {_MOST_PREFORK:,}; ask for fewer (-c "
                f"{_MOST_PREFORK}), or use apache-event"
            )
        started = count
        # Apache requires MaxSpareServers > MinSpareServers.
        most_spare = count + 1
        if self._grows:
            started = _STARTED
            most_spare = 2 * _STARTED
        return count, {
            "ServerLimit": float(count),
            "MaxRequestWorkers": float(count),
            "StartServers": started,
            "MinSpareServers": started,
            "MaxSpareServers": most_spare,
        }


class LabApacheEvent(LabApache):
    """Apache's event MPM: a listener thread in each process waits for the idle connections, and
    worker threads serve requests.

    ``workers`` is the number of processes, by default as few as their descriptors allow. With more
    than one the status page's count of connections is not up to date (see configs/apache.conf).
    """

    name = "apache-event"
    mpm = "event"
    # With prefork mod_http2 serves one request per connection at a time, and warns about it.
    speaks_http2 = True
    # They fit into one process under a descriptor limit of 20,000, so the status page counts them.
    default_size = 10_000
    status_timeout = "2500ms"

    def _size(self) -> tuple[int, dict[str, float]]:
        processes, threads, factor = event_sizes(
            self.connections, descriptor_limit(), self._asked_workers
        )
        everything = processes * threads
        return processes, {
            "ServerLimit": processes,
            "StartServers": processes,
            "ThreadLimit": threads,
            "ThreadsPerChild": threads,
            "MaxRequestWorkers": everything,
            # All start at once, and none is stopped as idle, which would close its connections.
            "MinSpareThreads": everything,
            "MaxSpareThreads": everything,
            "AsyncRequestWorkerFactor": factor,
        }


def page(size: int) -> bytes:
    """An HTML page of exactly ``size`` bytes (cut, if its tags are longer)."""
    before = b"<html><body><h1>It works!</h1><!-- "
    after = b" --></body></html>\n"
    return (before + b"." * max(0, size - len(before) - len(after)) + after)[:size]


def _user_lines() -> str:
    """The directives for the children's user if we are root: Apache refuses to serve as root
    (unless built with BIG_SECURITY_HOLE). Reading their PSS then needs CAP_SYS_PTRACE, which root
    lacks in some containers.
    """
    if os.geteuid() != 0:
        return "# (User: only root may set it; children run as the user that started them)"
    try:
        nobody = pwd.getpwnam("nobody")
        return f"User nobody\nGroup {grp.getgrgid(nobody.pw_gid).gr_name}"
    except KeyError:
        raise HostError(
            "apache: this host has no user nobody to serve as, and Apache refuses root; run as "
            "another user"
        ) from None
