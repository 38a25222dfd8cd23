"""Reads an nginx's configuration on this host."""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec

from asyncli.collect import locate
from asyncli.collect.procfs import link
from asyncli.model.records import Check
from asyncli.model.trust import ask_server, user_of
from asyncli.preflight.nginx_blocks import (
    KEEPALIVE_TIME_S,
    ConnectionLimit,
    Content,
    Listen,
    Location,
    NginxConfig,
    ServerBlock,
    Timers,
    Upstream,
)
from asyncli.preflight.nginx_files import Directive, NginxFiles, UnreadableError, parse

# A process's beginning is known to a hundredth of a second since the boot; a file's times come once
# in a tick of the kernel.
_CLOCKS_APART_S = 0.02
# In this version keepalive_requests rose from 100 to 1000 and keepalive_time was added.
_MODERN = (1, 19, 10)
# Each is a field of :class:`Timers`, with _s.
_TIMES = ("keepalive_timeout", "client_header_timeout", "send_timeout", "keepalive_time")
_UNITS = {
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
    "M": 2592000.0,
    "y": 31536000.0,
}
# Numbers, times, sizes and switches.
_PUBLIC = re.compile(
    r"(?:(?:on|off|auto|\d{1,9}(?:ms|[smhdwMykKgG])?)(?: |\Z))*|FILE(?: [a-z]{1,9})?"
)
# Output paths do not change how nginx serves.
_OUTPUT_PATHS = re.compile(r"pid|lock_file|\w+_log|\w+_temp_path")
# A location or server block with one of these answers by another program, or by itself, not by
# files.
_HANDLERS = frozenset(
    {
        "proxy_pass",
        "fastcgi_pass",
        "uwsgi_pass",
        "scgi_pass",
        "grpc_pass",
        "memcached_pass",
        "stub_status",
        "empty_gif",
        "perl",
        "content_by_lua_block",
        "js_content",
        "nchan_subscriber",
        "nchan_publisher",
        "nchan_pubsub",
    }
)


def read_nginx(
    exe: str | None,
    config_path: str | Path | None = None,
    *,
    command_line: str = "",
    pid: int | None = None,
) -> NginxConfig | Check:
    """The configuration of the nginx ``exe``; an "unknown" Check with the reason if it cannot be
    read.

    ``config_path`` None: ``-c`` of the master's ``command_line``, else the built-in path; ``-g``
    directives count too. ``pid``: its master, whose user must be allowed to read the files. Runs
    ``nginx -V`` if that is safe (asyncli/model/trust.py).
    """
    built = ""
    why_not = ""
    folder = None
    user = None
    if pid is not None:
        folder = link(pid, "cwd")
        user = user_of(pid)
    if exe and pid is not None:
        built, why_not, _ = ask_server(exe, "-V", pid)
    named = config_path or locate.config_path(command_line, built, folder)
    if named is None:
        return _unknown_path(why_not)
    path = Path(named)
    files = NginxFiles(str(path), user)
    try:
        directives = files.read() + _global_directives(command_line)
    except UnreadableError as error:
        remedy = "let the server's user and asyncli's read it, or run asyncli as root"
        return _unreadable(str(error), remedy)
    if pid is not None and files.changed_s > _began_s(pid) + _CLOCKS_APART_S:
        why = f"{path}, or a file that it includes, was changed after nginx read it"
        return _unreadable(why, "reload nginx, so that it serves by what is written there")
    try:
        return _config(path, _version(built), directives)
    except KeyError:
        why = "events, http, server or location without a block"
    except (ValueError, IndexError, OverflowError) as error:
        why = str(error)
    return _unreadable(f"{path}: {why}", f"`{exe or 'nginx'} -t` says what is wrong with it")


def _unknown_path(why_not: str) -> Check:
    """``why_not``: why nginx was not asked; "" if it was."""
    why = "the path of its configuration is unknown"
    if why_not:
        why = f"{why}: {why_not}"
    return _unreadable(why, "name its process with --server-pid")


def _began_s(pid: int) -> float:
    """When the first of the processes that serve began (s since 1970): the workers of the master
    ``pid``, which a reload replaces, else itself. Infinite if it has ended, or is none of nginx's.
    """
    import psutil

    # psutil adds the boot's instant, which the kernel tells to a second.
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    by_psutil_s = psutil.boot_time()
    try:
        master = psutil.Process(pid)
        if not master.name().startswith("nginx"):
            return math.inf
        workers = master.children()
        began_s = min((worker.create_time() for worker in workers), default=master.create_time())
    except psutil.Error:
        return math.inf
    return began_s - by_psutil_s + booted_s


def _version(built: str) -> tuple[int, ...]:
    """The version by ``nginx -V``; (): unknown."""
    match = re.search(r"nginx version:\s*[\w.-]+/(\d+(?:\.\d+)*)", built)
    if match is None:
        return ()
    return tuple(int(part) for part in match[1].split("."))


def _global_directives(command_line: str) -> list[Directive]:
    """The directives of ``-g``."""
    match = re.search(r"\s-g\s+(.*?;)\s*(?=-\w(?:\s|$)|$)", command_line)
    if match is None:
        return []
    return parse(match[1].encode(), "-g")


def _unreadable(why: str, remedy: str) -> Check:
    return Check("nginx_config", "nginx's configuration", "unknown", detail=why, remedy=remedy)


def _config(path: Path, version: tuple[int, ...], directives: list[Directive]) -> NginxConfig:
    fields: dict[str, Any] = {}
    settings = _settings(directives)
    servers: list[ServerBlock] = []
    for directive in directives:
        name = directive["directive"]
        if name in ("events", "http"):
            for inner, text in _settings(directive["block"]).items():
                settings[f"{name} {inner}"] = text
        match name, directive["args"]:
            case "worker_processes", [count, *_]:
                fields["workers"] = _workers(count)
            case "worker_rlimit_nofile", [size, *_]:
                fields["rlimit_nofile"] = _size(size)
            case "events", _:
                fields |= _events(directive["block"])
            case "http", _:
                servers += _servers(directive["block"], _default_timers(version))
                fields |= _shared_by_servers(directive["block"])
    return NginxConfig(
        path=str(path), version=version, servers=tuple(servers), directives=settings, **fields
    )


def _workers(count: str) -> int | None:
    """None: one for each CPU."""
    if count == "auto":
        return None
    return int(count)


def _default_timers(version: tuple[int, ...]) -> Timers:
    if not version or version >= _MODERN:
        return Timers(keepalive_requests=1000, keepalive_time_s=KEEPALIVE_TIME_S)
    return Timers(keepalive_requests=100, keepalive_time_s=None)


def _events(block: list[Directive]) -> dict[str, int]:
    fields = {}
    for directive in block:
        if directive["directive"] == "worker_connections":
            fields["worker_connections"] = int(directive["args"][0])
    return fields


def _shared_by_servers(block: list[Directive]) -> dict[str, dict[str, Any]]:
    """The upstreams and the zones of limit_conn of an http block."""
    upstreams: dict[str, Upstream] = {}
    zones: dict[str, str] = {}
    for directive in block:
        match directive["directive"], directive["args"]:
            case "upstream", [name]:
                upstreams[name] = _upstream(directive["block"])
            case "limit_conn_zone", [key, zone]:
                name = zone.removeprefix("zone=").partition(":")[0]
                zones[name] = key
    return {"upstreams": upstreams, "zones": zones}


def _upstream(block: list[Directive]) -> Upstream:
    """Servers for backup count too: nginx takes them once the others are full."""
    limits: list[int] = []
    addresses = set()
    is_exact = True
    for directive in block:
        if directive["directive"] != "server" or "down" in directive["args"]:
            continue
        place, *options = directive["args"]
        number = next((word for word in options if word.startswith("max_conns=")), "max_conns=0")
        limits.append(int(number.removeprefix("max_conns=")))
        if not place.startswith("unix:"):
            addresses.add(place)
            is_exact = is_exact and is_address(place)
    connections = None
    if limits and 0 not in limits:
        connections = sum(limits)
    return Upstream(
        connections=connections,
        is_shared=_has(block, "zone"),
        addresses=frozenset(addresses),
        is_exact=is_exact,
    )


def is_address(place: str) -> bool:
    """Whether a backend is an address, with or without a port, not a name."""
    host = re.sub(r":\d+\Z", "", place).strip("[]")
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _servers(block: list[Directive], default: Timers) -> Iterator[ServerBlock]:
    """The server blocks of an http block."""
    timers = _inherit(default, block)
    has_status = _has(block, "stub_status")
    content = _content(block, Content())
    for directive in block:
        if directive["directive"] == "server":
            yield _server(directive["block"], timers, content, has_status)


def _server(
    block: list[Directive], outer: Timers, outer_content: Content, has_status: bool
) -> ServerBlock:
    timers = _inherit(outer, block)
    content = _content(block, outer_content)
    listens: list[Listen] = []
    names: list[str] = []
    is_secure = False
    for directive in block:
        match directive["directive"], directive["args"]:
            case "listen", args:
                listens += _listens(args)
            case "server_name", args:
                names += [str(name).lower() for name in args]
            case "ssl", ["on"]:
                is_secure = True
    if is_secure:
        listens = [msgspec.structs.replace(listen, ssl=True) for listen in listens]
    if not listens:
        listens = [Listen(address="*", port=_default_port())]
    return ServerBlock(
        listens=tuple(listens),
        names=tuple(names),
        timers=timers,
        content=content,
        locations=tuple(_locations(block, timers, content)),
        stub_status=has_status or _has(block, "stub_status"),
        directives=_settings(block),
    )


def _default_port() -> int:
    """nginx's default: *:80 as root, *:8000 otherwise."""
    if os.geteuid() == 0:
        return 80
    return 8000


def _locations(block: list[Directive], outer: Timers, outer_content: Content) -> Iterator[Location]:
    for directive in block:
        if directive["directive"] != "location":
            continue
        inner = directive["block"]
        modifier, pattern = _location_pattern(directive["args"])
        timers = _inherit(outer, inner)
        content = _content(inner, outer_content, modifier, pattern)
        yield Location(
            modifier=modifier,
            pattern=pattern,
            timers=timers,
            content=content,
            locations=tuple(_locations(inner, timers, content)),
            stub_status=_has(inner, "stub_status"),
            directives=_settings(inner),
        )


def _location_pattern(args: list[str]) -> tuple[str, str]:
    """The modifier ("" for none) and the pattern of a location, which may be one word."""
    if len(args) > 1:
        return args[0], args[1]
    glued = re.match(r"(=|\^~|~\*|~)(.+)", args[0])
    if glued:
        return glued[1], glued[2]
    return "", args[0]


def _content(
    block: list[Directive], outer: Content, modifier: str = "", pattern: str = ""
) -> Content:
    """The content of a level: root, index, error pages and access are inherited, the rest is its
    own.
    """
    inherited = msgspec.structs.replace(
        outer, try_files=(), rewrites=(), is_handled=False, proxied=""
    )
    own: dict[str, Any] = {}
    for directive in block:
        match directive["directive"], directive["args"]:
            case "root", [folder]:
                own["root"] = folder.rstrip("/")
                own["alias"] = ""
            case "alias", [folder]:
                # A folder for a pattern has captures in it, which are not followed.
                own["root"] = folder if modifier in ("", "=", "^~") else "$"
                own["alias"] = pattern
            case "index", [*names]:
                own["index"] = tuple(names)
            case "try_files", [*names]:
                own["try_files"] = tuple(names)
            case "autoindex", [flag]:
                own["has_autoindex"] = flag == "on"
            case "allow" | "deny" as rule, args if "is_denied" not in own:
                # The first rule that applies decides.
                own["is_denied"] = rule == "deny" and args == ["all"]
    own["is_handled"] = any(directive["directive"] in _HANDLERS for directive in block)
    own["rewrites"] = tuple(_rewrites(block))
    pages = tuple(_error_pages(block))
    if pages:
        own["error_pages"] = pages
    return msgspec.structs.replace(inherited, **own, **_passage(block))


def _passage(block: list[Directive]) -> dict[str, Any]:
    """Where a level passes requests to, and how many connections it allows."""
    own: dict[str, Any] = {}
    limits: list[ConnectionLimit] = []
    for directive in block:
        match directive["directive"], directive["args"]:
            case "proxy_pass", [url]:
                own["proxied"] = _without_path(url)
            case "proxy_bind", [address, *_]:
                own["has_proxy_bind"] = address != "off"
            case "limit_conn", [zone, number]:
                limits.append(ConnectionLimit(zone, int(number)))
            case "limit_conn_dry_run", [flag]:
                own["limits_are_dry"] = flag == "on"
    if limits:
        # Those of the outer level apply only to a level without any.
        own["connection_limits"] = tuple(limits)
    return own


def _without_path(url: str) -> str:
    """``http://u/path`` as ``http://u``; a Unix socket has its path, up to a further colon."""
    scheme, mark, rest = url.partition("://")
    if rest.startswith("unix:"):
        return f"{scheme}{mark}unix:{rest.removeprefix('unix:').partition(':')[0]}"
    return f"{scheme}{mark}{rest.partition('/')[0]}"


def _rewrites(block: list[Directive]) -> Iterator[tuple[str, str, str]]:
    for directive in block:
        match directive["directive"], directive["args"]:
            case "rewrite", [pattern, replacement]:
                yield pattern, replacement, ""
            case "rewrite", [pattern, replacement, flag, *_]:
                yield pattern, replacement, flag
            case "return", [status, *_] if status.isdigit():
                yield "", status, "return"
            case "return", [_]:
                # A URL alone is a redirect (ngx_http_rewrite_return).
                yield "", "302", "return"


def _error_pages(block: list[Directive]) -> Iterator[tuple[int, str]]:
    """(status, page) of a level."""
    for directive in block:
        if directive["directive"] != "error_page":
            continue
        *statuses, page = directive["args"]
        for status in statuses:
            if status.isdigit():
                yield int(status), page


def _settings(block: list[Directive]) -> dict[str, str]:
    """The directives of a level. Values other than numbers, times, sizes or switches may be secrets
    (a header for a backend) and are replaced by a fingerprint.
    """
    texts: dict[str, list[str]] = {}
    for directive in block:
        if "block" not in directive:
            name = directive["directive"]
            texts.setdefault(name, []).append(_shown(name, directive["args"]))
    return {name: "; ".join(values) for name, values in texts.items()}


def _shown(name: str, args: list[str]) -> str:
    if _OUTPUT_PATHS.fullmatch(name) and args and args[0] != "off":
        args = ["FILE", *args[1:]]
    text = " ".join(args)
    if name == "listen" or _PUBLIC.fullmatch(text):
        return text
    return f"#{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _has(block: list[Directive], name: str) -> bool:
    return any(directive["directive"] == name for directive in block)


def _inherit(outer: Timers, block: list[Directive]) -> Timers:
    """The timers of a level: its own, else the outer level's."""
    own: dict[str, Any] = {}
    for directive in block:
        name = directive["directive"]
        if name in _TIMES:
            own[f"{name}_s"] = _seconds(directive["args"][0])
        elif name == "keepalive_requests":
            own[name] = int(directive["args"][0])
    return msgspec.structs.replace(outer, **own)


def _listens(args: list[str]) -> Iterator[Listen]:
    """The sockets of a ``listen``: one, or one for each port of a range."""
    place, *options = args
    address, ports = _address_and_ports(place)
    backlog = None
    for option in options:
        if option.startswith("backlog="):
            backlog = int(option.removeprefix("backlog="))
            break
    for port in ports:
        yield Listen(
            address=address,
            port=port,
            backlog=backlog,
            reuseport="reuseport" in options,
            default="default_server" in options or "default" in options,
            proxy_protocol="proxy_protocol" in options,
            ssl="ssl" in options or "quic" in options,
            ipv6only="ipv6only=off" not in options,
            place=place,
        )


def _address_and_ports(place: str) -> tuple[str, range]:
    """Of a ``listen``: a port, an address (its port is 80), or both; a port may be a range."""
    if place.startswith("unix:"):
        return place.removeprefix("unix:"), range(1)
    match = re.fullmatch(r"(?:(\[[^\]]*\]|[^:\[\]]*):)?(\d+)(?:-(\d+))?", place)
    if match is not None:
        address = match[1] or "*"
        first = int(match[2])
        last = int(match[3] or first)
    elif re.fullmatch(r"\[[^\]]*\]|[^:]+", place):
        address = place
        first = 80
        last = 80
    else:
        raise ValueError(f"unknown form of listen: {place!r}")
    return address.strip("[]"), range(first, min(last, 65_535) + 1)


def _seconds(text: str) -> float:
    """nginx's time: ``75``, ``75s``, ``1h 30m``, ``500ms``."""
    compact = "".join(text.split())
    parts = re.findall(r"(\d+)(ms|[smhdwMy])?", compact)
    understood = "".join(number + unit for number, unit in parts)
    if not parts or understood != compact:
        raise ValueError(f"{text!r} is not a time")
    return sum(int(number) * _UNITS[unit or "s"] for number, unit in parts)


def _size(text: str) -> int:
    """A number, with nginx's k and m."""
    match text[-1].lower():
        case "k":
            return int(text[:-1]) * 1024
        case "m":
            return int(text[:-1]) * 1024**2
    return int(text)
