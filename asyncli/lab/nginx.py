"""A private nginx for very many long-lived connections."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncli.lab import ports
from asyncli.lab.base import LabServer, ask, backlog, quoted
from asyncli.lab.executables import NginxBinary, Sizes, descriptor_limit, find_nginx, size
from asyncli.model.errors import HostError, PlanError

# In characters: an escaped ASCII character takes two bytes, another one up to four.
_LONGEST_PART = 1_900
_LONGEST_PART_BEYOND_ASCII = 950
# nginx's default on hosts of 64 bits (ngx_http_core_module), of which a size is a multiple.
_CONNECTION_POOL_BYTES = 512
_POOL_ALIGNMENT = 16


class LabNginx(LabServer):
    """A private nginx. Raises :class:`HostError` without an nginx, or if it does not start.

    It answers every path with ``body``, in which nginx replaces its variables. ``least_workers``:
    the least number of workers (default: one per CPU). With ``http2`` and without TLS it speaks
    only HTTP/2. ``proxy_protocol``: connections begin with a PROXY header. ``pad_bytes``: how much
    more memory each connection takes. The other keyword arguments provoke connection losses.
    """

    name = "nginx"
    template = "nginx.conf"
    status_path = "/nginx_status"
    speaks_tls = speaks_http2 = speaks_proxy_protocol = pads_connections = True
    error_pattern = re.compile(r"\[(emerg|alert|crit|error)\]")
    prefix_pattern = re.compile(r"^[\d/]+ [\d:]+ |^nginx: |\d+#\d+: (\*\d+ )?")
    # It writes to stderr until it has read its configuration, then to the log.
    log_names = ("error.log", "stderr")

    def __init__(
        self,
        *common: Any,
        keepalive_requests: int = 10_000_000,
        keepalive_time_s: int = 3_600_000,
        worker_connections: int | None = None,
        binary: NginxBinary | None = None,
        body: str = "ok\n",
        content_type: str = "text/plain",
        least_workers: int | None = None,
        proxy_protocol: bool = False,
        pad_bytes: int = 0,
        **more: Any,
    ) -> None:
        super().__init__(*common, **more)
        self._least_workers = least_workers or len(os.sched_getaffinity(0))
        self._requests = keepalive_requests
        self._time_s = keepalive_time_s
        self._slots = worker_connections
        self._binary = binary
        self._proxied = proxy_protocol
        if pad_bytes % _POOL_ALIGNMENT:
            raise PlanError(
                f"nginx: a pad of {pad_bytes} bytes is no multiple of {_POOL_ALIGNMENT}"
            )
        self._pad_bytes = pad_bytes
        self._body = body
        self._content_type = content_type
        self._sized_for = self._connections
        self.sizes: Sizes | None = None

    @property
    def status_url(self) -> str:
        """The URL of its stub_status page."""
        return f"http://127.0.0.1:{self.status_port}{self.status_path}"

    @property
    def label(self) -> str:
        """For example ``nginx/1.22.1``."""
        if self._binary is None:
            return "nginx"
        return self._binary.version_text

    async def _prepare(self) -> None:
        self._binary = self._binary or find_nginx()
        if self._binary is None:
            raise HostError(
                "no nginx on this host; install it (apt-get install nginx) or use the built-in "
                "server"
            )
        if not self._binary.stub_status:
            raise HostError(
                f"{self._binary.path} is built without stub_status; install the distribution's "
                "nginx, or use the built-in server"
            )
        self.sizes = size(
            self._sized_for,
            nofile=descriptor_limit(),
            cpus=self._least_workers,
            workers=self._asked_workers,
        )
        self._workers = self.sizes.workers
        if self._slots is not None:
            self.sizes = self.sizes._replace(slots=self._slots)

    def _argv(self) -> list[str]:
        assert self._binary is not None
        argv = [self._binary.path, "-p", f"{self.config_path.parent}/", "-c", str(self.config_path)]
        if self._binary.version >= (1, 19, 5):
            # Else it warns about the compiled-in log, which only root may write.
            argv += ["-e", str(self.error_log)]
        return argv

    async def _is_ready(self) -> bool:
        return b"Active connections" in await ask(self.status_port, self.status_path)

    def _workers_ready(self) -> bool:
        """Whether each worker has the title "nginx: worker process", which nginx sets once it is
        set up.

        True if the kernel does not list children (CONFIG_PROC_CHILDREN).
        """
        assert self._process is not None
        pid = self._process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        except OSError:
            return True
        return sum(map(_is_worker, children)) >= self.workers

    def _values(self) -> Mapping[str, object]:
        assert self.sizes is not None
        assert self._binary is not None
        parts, body = _split_body(self._body)
        user_line = "# (user: only root may set it)"
        if os.geteuid() == 0:
            # The workers of a root nginx stay root: another user's PSS needs CAP_SYS_PTRACE, which
            # root lacks in most containers.
            user_line = "user root root;"
        keepalive_time = "# (not in this version)"
        status_keepalive_time = "# (keepalive_time: not in this version)"
        if self._binary.version >= (1, 19, 10):
            keepalive_time = f"keepalive_time {self._time_s}s;"
            status_keepalive_time = "keepalive_time 1000h;"
        # At least nginx's default, for tests with a short keepalive_timeout.
        header_timeout_s = max(60, self._timeout_s)
        http2_lines = "# (no HTTP/2)"
        if self.http2:
            # It also ends HTTP/2 connections that only ping.
            header_timeout_s = self._time_s
            http2_lines = "http2_max_concurrent_streams 10000;"
        tls_lines = "# (no TLS)"
        if self.tls:
            tls_lines = self._tls_lines()
        return {
            "error_log": quoted(self._file("error.log")),
            "user_line": user_line,
            "workers": self.sizes.workers,
            "nofile": self.sizes.nofile,
            "slots": self.sizes.slots,
            "temp_paths": _temp_paths(self._binary.without),
            "keepalive_timeout": self._timeout_s,
            "keepalive_requests": self._requests,
            "header_timeout": header_timeout_s,
            "connection_pool": _CONNECTION_POOL_BYTES + self._pad_bytes,
            "keepalive_time": keepalive_time,
            "status_keepalive_time": status_keepalive_time,
            "listen": " ".join([ports.host_port(self.address, self.port), *self._listen_options()]),
            "http2_lines": http2_lines,
            "tls_lines": tls_lines,
            "backlog": backlog(),
            "content_type": self._content_type,
            "modules": "# (no modules)",
            "answer": f"{parts}\n            return 200 {body};".lstrip(),
            "beside_status": "# (nothing else)",
            "status_port": self.status_port,
        }

    def _listen_options(self) -> list[str]:
        options = []
        if self.tls:
            options.append("ssl")
        if self.http2:
            options.append("http2")
        if self._proxied:
            options.append("proxy_protocol")
        return options

    def _tls_lines(self) -> str:
        pem = quoted(self._file("server.pem"))
        directives = (
            f"ssl_certificate {pem};",
            f"ssl_certificate_key {pem};",
            "ssl_protocols TLSv1.2 TLSv1.3;",
        )
        return "\n        ".join(directives)


def _is_worker(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"nginx: worker process")
    except OSError:
        return False


def _split_body(text: str) -> tuple[str, str]:
    """``set`` directives for the parts of a long text, and the argument that joins them.

    nginx refuses an argument of 4,096 bytes (ngx_conf_file.c, NGX_CONF_BUFFER: "too long
    parameter").
    """
    longest = _LONGEST_PART if text.isascii() else _LONGEST_PART_BEYOND_ASCII
    if len(text) <= longest:
        return "", quoted(text)
    parts = []
    while len(text) > longest:
        part = text[:longest]
        # Never split a variable, which is evaluated in its part.
        part = re.sub(r"\$\{?\w*\Z", "", part) or part
        parts.append(part)
        text = text[len(part) :]
    parts.append(text)
    directives = []
    joined = ""
    for number, part in enumerate(parts):
        directives.append(f"set $body_{number} {quoted(part)};")
        joined += f"${{body_{number}}}"
    return "\n            ".join(directives), f'"{joined}"'


def _temp_paths(without: frozenset[str]) -> str:
    """Directives that put the temporary folders of the existing modules into our own folder."""
    optional = ("proxy", "fastcgi", "uwsgi", "scgi")
    names = ["client_body", *(name for name in optional if f"http_{name}_module" not in without)]
    return "".join(f"    {name}_temp_path {name}_temp;\n" for name in names)


_NCHAN_MODULE = "ngx_nchan_module.so"


def has_nchan() -> bool:
    """Whether this host's nginx has the Nchan module."""
    binary = find_nginx()
    return binary is not None and Path(binary.modules, _NCHAN_MODULE).is_file()


class LabNchan(LabNginx):
    """A :class:`LabNginx` where every path is a subscription to one channel, by WebSocket or as
    server-sent events: the request selects which, and ``scheme`` is that of its URL. A POST to
    ``/publish``, at the status page's port, goes to all subscribers.
    """

    name = "nchan"
    speaks_http2 = False
    scheme = "ws"
    also = "http"

    @property
    def label(self) -> str:
        """For example ``nginx/1.22.1 (Nchan)``."""
        return f"{super().label} (Nchan)"

    async def _prepare(self) -> None:
        await super()._prepare()
        assert self._binary is not None
        self._module = Path(self._binary.modules, _NCHAN_MODULE)
        if not self._module.is_file():
            raise HostError(
                "this host's nginx has no Nchan module; install it (apt-get install "
                "libnginx-mod-nchan)"
            )

    def _values(self) -> Mapping[str, object]:
        return {
            **super()._values(),
            "modules": f"load_module {quoted(self._module)};",
            # It sends no pings: heartbeats are the client's.
            "answer": "nchan_subscriber websocket eventsource;\n            nchan_channel_id soak;",
            "beside_status": (
                "location = /publish {\n"
                "            nchan_publisher;\n"
                "            nchan_channel_id soak;\n"
                "        }"
            ),
        }
