"""What asyncli knows of an nginx's configuration: its levels, sockets, timers and content."""

from __future__ import annotations

import msgspec

# nginx's defaults (nginx.org, ngx_core_module and ngx_http_core_module).
_WORKER_CONNECTIONS = 512
_KEEPALIVE_TIMEOUT_S = 75.0
_HEADER_TIMEOUT_S = 60.0
KEEPALIVE_TIME_S = 3600.0


class Listen(msgspec.Struct, frozen=True, kw_only=True):
    """One ``listen``.

    ``address``: without brackets, "*" for all. ``backlog`` None: the default (511 on Linux). For a
    Unix socket ``port`` is 0 and ``address`` its path.
    """

    address: str
    port: int
    backlog: int | None = None
    reuseport: bool = False
    default: bool = False
    proxy_protocol: bool = False
    ssl: bool = False
    ipv6only: bool = True
    #: As written in the configuration: "127.0.0.1:8080", "8080".
    place: str = ""


class Timers(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that close a connection, in seconds.

    ``keepalive_time_s`` None: the version has no such limit.
    """

    keepalive_timeout_s: float = _KEEPALIVE_TIMEOUT_S
    keepalive_requests: int = 1000
    keepalive_time_s: float | None = KEEPALIVE_TIME_S
    client_header_timeout_s: float = _HEADER_TIMEOUT_S
    send_timeout_s: float = _HEADER_TIMEOUT_S


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The backends of an ``upstream``, or of a ``proxy_pass`` to one.

    ``connections``: the sum of their max_conns; None: at least one has no limit. ``is_shared``:
    nginx's workers share these numbers (zone), else each has its own. ``addresses``: of TCP, as
    written; ``is_exact``: these are all, not names, of which each may have several.
    """

    connections: int | None = None
    is_shared: bool = False
    addresses: frozenset[str] = frozenset()
    is_exact: bool = True


class ConnectionLimit(msgspec.Struct, frozen=True):
    """A ``limit_conn``: the name of its zone, and how many connections a key in it may have."""

    zone: str
    number: int


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What a level does with a request.

    ``root``: the folder of its files; ``alias``: the part of a URI that ``root`` stands for;
    ``is_handled``: it answers without files. ``rewrites``: (pattern, replacement, flag) of
    ``rewrite``, and of ``return`` ("", status, "return"). ``proxied``: the URL of proxy_pass
    without its path, or ""; ``has_proxy_bind``: proxy_bind sets the address that nginx connects
    from.
    """

    root: str = "html"
    alias: str = ""
    index: tuple[str, ...] = ("index.html",)
    try_files: tuple[str, ...] = ()
    rewrites: tuple[tuple[str, str, str], ...] = ()
    error_pages: tuple[tuple[int, str], ...] = ()
    is_handled: bool = False
    is_denied: bool = False
    has_autoindex: bool = False
    proxied: str = ""
    has_proxy_bind: bool = False
    connection_limits: tuple[ConnectionLimit, ...] = ()
    limits_are_dry: bool = False

    def file_of(self, uri: str) -> str | None:
        """The path of a URI's file; None where asyncli does not know the folder."""
        if not self.root.startswith("/") or "$" in self.root:
            return None
        return self.root + uri.removeprefix(self.alias)


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """A location with those nested in it.

    ``modifier`` is "", "=", "^~", "~" or "~*". A named location's pattern begins with @.
    """

    modifier: str
    pattern: str
    timers: Timers
    content: Content = Content()
    locations: tuple[Location, ...] = ()
    stub_status: bool = False
    #: Its directives, with private values as fingerprints.
    directives: dict[str, str] = msgspec.field(name="said", default_factory=dict)


class ServerBlock(msgspec.Struct, frozen=True, kw_only=True):
    """One server block, with what it inherits."""

    listens: tuple[Listen, ...]
    names: tuple[str, ...] = ()
    timers: Timers = Timers()
    content: Content = Content()
    locations: tuple[Location, ...] = ()
    stub_status: bool = False
    directives: dict[str, str] = msgspec.field(name="said", default_factory=dict)


class NginxConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``workers`` None: ``auto``; ``rlimit_nofile`` None: inherited. ``zones``: the keys of
    limit_conn_zone by the names of their zones.
    """

    path: str
    version: tuple[int, ...] = ()
    workers: int | None = 1
    worker_connections: int = _WORKER_CONNECTIONS
    rlimit_nofile: int | None = None
    servers: tuple[ServerBlock, ...] = ()
    upstreams: dict[str, Upstream] = {}
    zones: dict[str, str] = {}
    #: Directives outside of the server blocks: "http keepalive_timeout" -> "75s".
    directives: dict[str, str] = msgspec.field(name="said", default_factory=dict)
