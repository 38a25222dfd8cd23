"""Reads an nginx's configuration on this host."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from asyncli.collect import locate
from asyncli.collect.procfs import link
from asyncli.model.records import Check
from asyncli.model.trust import ask_server, user_of
from asyncli.preflight.nginx_files import Directive, NginxFiles, UnreadableError, parse

# nginx's defaults (nginx.org, ngx_core_module and ngx_http_core_module).
_WORKER_CONNECTIONS, _KEEPALIVE_TIMEOUT_S, _HEADER_TIMEOUT_S, _KEEPALIVE_TIME_S = 512, 75.0, 60.0, 3600.0
# In this version keepalive_requests rose from 100 to 1000 and keepalive_time was added.
_MODERN = (1, 19, 10)
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "M": 2592000.0, "y": 31536000.0}
# Numbers, times, sizes and switches.
_PUBLIC = re.compile(r"(?:(?:on|off|auto|\d{1,9}(?:ms|[smhdwMykKgG])?)(?: |\Z))*|FILE(?: [a-z]{1,9})?")
# Output paths do not change how nginx serves.
_OUTPUT_PATHS = re.compile(r"pid|lock_file|\w+_log|\w+_temp_path")
# A location or server block with one of these answers by another program, or by itself, not by files.
_HANDLERS = frozenset({
    "proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass", "memcached_pass", "stub_status", "empty_gif", "perl",
    "content_by_lua_block", "js_content", "nchan_subscriber", "nchan_publisher", "nchan_pubsub",
})  # fmt: skip


class Listen(msgspec.Struct, frozen=True, kw_only=True):
    """One ``listen``: ``address`` without brackets, "*" for all; ``backlog`` None: the default (511 on Linux). For a Unix socket
    ``port`` is 0 and ``address`` its path.
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
    """Limits that close a connection, in seconds; ``keepalive_time_s`` None in versions without it."""

    keepalive_timeout_s: float = _KEEPALIVE_TIMEOUT_S
    keepalive_requests: int = 1000
    keepalive_time_s: float | None = _KEEPALIVE_TIME_S
    client_header_timeout_s: float = _HEADER_TIMEOUT_S
    send_timeout_s: float = _HEADER_TIMEOUT_S


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What a level does with a request. ``root``: the folder of its files; ``alias``: the part of a URI that ``root`` stands for;
    ``is_handled``: it answers without files. ``rewrites``: (pattern, replacement, flag) of ``rewrite``, and of ``return``
    ("", status, "return").
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

    def file_of(self, uri: str) -> str | None:
        """The path of a URI's file; None where asyncli does not know the folder."""
        if not self.root.startswith("/") or "$" in self.root:
            return None
        return self.root + uri.removeprefix(self.alias)


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """A location with those nested in it: ``modifier`` is "", "=", "^~", "~" or "~*". A named one's pattern begins with @."""

    modifier: str
    pattern: str
    timers: Timers
    content: Content = Content()
    locations: tuple[Location, ...] = ()
    stub_status: bool = False
    #: Its directives, from :func:`_settings`.
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
    """``workers`` None: ``auto``; ``rlimit_nofile`` None: inherited."""

    path: str
    version: tuple[int, ...] = ()
    workers: int | None = 1
    worker_connections: int = _WORKER_CONNECTIONS
    rlimit_nofile: int | None = None
    servers: tuple[ServerBlock, ...] = ()
    #: Directives outside of the server blocks: "http keepalive_timeout" -> "75s".
    directives: dict[str, str] = msgspec.field(name="said", default_factory=dict)


def read_nginx(
    exe: str | None, config_path: str | Path | None = None, *, command_line: str = "", pid: int | None = None
) -> NginxConfig | Check:
    """The configuration of the nginx ``exe``; an "unknown" Check with the reason if it cannot be read.

    ``config_path`` None: ``-c`` of the master's ``command_line``, else the built-in path; ``-g`` directives count too. ``pid``:
    its master, whose user must be allowed to read the files. Runs ``nginx -V`` if that is safe (asyncli/model/trust.py).
    """
    built, why_not = "", ""
    if exe and pid is not None:
        built, why_not, _ = ask_server(exe, "-V", pid)
    named = config_path or locate.config_path(command_line, built, None if pid is None else link(pid, "cwd"))
    if named is None:
        because = f": {why_not}" if why_not else ""
        return _unreadable(f"the path of its configuration is unknown{because}", "name its process with --server-pid")
    path, match = Path(named), re.search(r"nginx version:\s*[\w.-]+/(\d+(?:\.\d+)*)", built)
    version = tuple(int(part) for part in match[1].split(".")) if match else ()
    globals_ = re.search(r"\s-g\s+(.*?;)\s*(?=-\w(?:\s|$)|$)", command_line)
    try:
        directives = NginxFiles(str(path), None if pid is None else user_of(pid)).read()
        directives += parse(globals_[1].encode(), "-g") if globals_ else []
    except UnreadableError as error:
        return _unreadable(str(error), "let the server's user and asyncli's read it, or run asyncli as root")
    try:
        return _config(path, version, directives)
    except (ValueError, IndexError, OverflowError, KeyError) as error:
        why = "events, http, server or location without a block" if isinstance(error, KeyError) else error
        return _unreadable(f"{path}: {why}", f"`{exe or 'nginx'} -t` says what is wrong with it")


def _unreadable(why: str, remedy: str) -> Check:
    return Check("nginx_config", "nginx's configuration", "unknown", detail=why, remedy=remedy)


def _config(path: Path, version: tuple[int, ...], directives: list[Directive]) -> NginxConfig:
    modern = not version or version >= _MODERN
    timers = Timers(keepalive_requests=1000 if modern else 100, keepalive_time_s=_KEEPALIVE_TIME_S if modern else None)
    found: dict[str, Any] = {"directives": _settings(directives)}
    servers: list[ServerBlock] = []
    for one in directives:
        if one["directive"] in ("events", "http"):
            found["directives"] |= {f"{one['directive']} {name}": text for name, text in _settings(one["block"]).items()}
        match one["directive"], one["args"]:
            case "worker_processes", [count, *_]:
                found["workers"] = None if count == "auto" else int(count)
            case "worker_rlimit_nofile", [size, *_]:
                found["rlimit_nofile"] = _size(size)
            case "events", _:
                slots = [int(sub["args"][0]) for sub in one["block"] if sub["directive"] == "worker_connections"]
                found |= {"worker_connections": slots[-1]} if slots else {}
            case "http", _:
                timers = _inherit(timers, one["block"])
                status, content = _has(one["block"], "stub_status"), _content(one["block"], Content())
                for sub in one["block"]:
                    if sub["directive"] == "server":
                        servers.append(_server(sub["block"], timers, content, status))
    return NginxConfig(path=str(path), version=version, servers=tuple(servers), **found)


def _server(block: list[Directive], outer: Timers, outer_content: Content, status: bool) -> ServerBlock:
    timers, content = _inherit(outer, block), _content(block, outer_content)
    listens = [listen for one in block if one["directive"] == "listen" for listen in _listens(one["args"])]
    if any(one["directive"] == "ssl" and one["args"] == ["on"] for one in block):
        listens = [msgspec.structs.replace(listen, ssl=True) for listen in listens]
    # nginx's default: *:80 as root, *:8000 otherwise.
    listens = listens or [Listen(address="*", port=80 if os.geteuid() == 0 else 8000)]
    return ServerBlock(
        listens=tuple(listens),
        names=tuple(str(name).lower() for one in block if one["directive"] == "server_name" for name in one["args"]),
        timers=timers,
        content=content,
        locations=tuple(_locations(block, timers, content)),
        stub_status=status or _has(block, "stub_status"),
        directives=_settings(block),
    )


def _locations(block: list[Directive], outer: Timers, outer_content: Content) -> Iterator[Location]:
    for one in block:
        if one["directive"] != "location":
            continue
        args, inner = one["args"], one["block"]
        modifier, pattern = (args[0], args[1]) if len(args) > 1 else ("", args[0])
        if len(args) == 1 and (glued := re.match(r"(=|\^~|~\*|~)(.+)", pattern)):
            modifier, pattern = glued[1], glued[2]
        timers, content = _inherit(outer, inner), _content(inner, outer_content, modifier, pattern)
        yield Location(
            modifier=modifier,
            pattern=pattern,
            timers=timers,
            content=content,
            locations=tuple(_locations(inner, timers, content)),
            stub_status=_has(inner, "stub_status"),
            directives=_settings(inner),
        )


def _content(block: list[Directive], outer: Content, modifier: str = "", pattern: str = "") -> Content:
    """The content of a level: root, index, error pages and access are inherited, the rest is its own."""
    found = Content(
        root=outer.root, alias=outer.alias, index=outer.index, error_pages=outer.error_pages, is_denied=outer.is_denied,
        has_autoindex=outer.has_autoindex,
    )  # fmt: skip
    own: dict[str, Any] = {"is_handled": any(one["directive"] in _HANDLERS for one in block)}
    for one in block:
        match one["directive"], one["args"]:
            case "root", [folder]:
                own |= {"root": folder.rstrip("/"), "alias": ""}
            case "alias", [folder]:
                # A folder for a pattern has captures in it, which are not followed.
                own |= {"root": folder if modifier in ("", "=", "^~") else "$", "alias": pattern}
            case "index", [*names]:
                own["index"] = tuple(names)
            case "try_files", [*names]:
                own["try_files"] = tuple(names)
            case "autoindex", [flag]:
                own["has_autoindex"] = flag == "on"
    own["rewrites"] = tuple(_rewrites(block))
    pages = tuple(page for one in block if one["directive"] == "error_page" for page in _error_pages(one["args"]))
    access = [one["args"] for one in block if one["directive"] in ("allow", "deny")]
    rules = [one["directive"] for one in block if one["directive"] in ("allow", "deny")]
    own |= {"error_pages": pages} if pages else {}
    own |= {"is_denied": rules[0] == "deny" and access[0] == ["all"]} if rules else {}
    return msgspec.structs.replace(found, **own)


def _rewrites(block: list[Directive]) -> Iterator[tuple[str, str, str]]:
    for one in block:
        match one["directive"], one["args"]:
            case "rewrite", [pattern, replacement, *flag]:
                yield pattern, replacement, flag[0] if flag else ""
            case "return", [status, *_] if status.isdigit():
                yield "", status, "return"
            case "return", [_]:
                # A URL alone is a redirect (ngx_http_rewrite_return).
                yield "", "302", "return"


def _error_pages(args: list[str]) -> Iterator[tuple[int, str]]:
    *statuses, page = args
    for status in statuses:
        if status.isdigit():
            yield int(status), page


def _settings(block: list[Directive]) -> dict[str, str]:
    """The directives of a level. Values other than numbers, times, sizes or switches may be secrets (a header for a backend) and
    are replaced by a fingerprint."""
    found: dict[str, list[str]] = {}
    for one in block:
        if "block" not in one:
            args = one["args"]
            is_output = _OUTPUT_PATHS.fullmatch(one["directive"]) and args and args[0] != "off"
            text = " ".join(["FILE", *args[1:]] if is_output else args)
            public = one["directive"] == "listen" or _PUBLIC.fullmatch(text)
            shown = text if public else f"#{hashlib.sha256(text.encode()).hexdigest()[:8]}"
            found.setdefault(one["directive"], []).append(shown)
    return {name: "; ".join(texts) for name, texts in found.items()}


def _has(block: list[Directive], name: str) -> bool:
    return any(one["directive"] == name for one in block)


def _inherit(outer: Timers, block: list[Directive]) -> Timers:
    """The timers of a level: its own, else the outer level's."""
    found: dict[str, Any] = {}
    for one in block:
        name, args = one["directive"], one["args"]
        if name in ("keepalive_timeout", "client_header_timeout", "send_timeout"):
            found[f"{name}_s"] = _seconds(args[0])
        elif name == "keepalive_time":
            found["keepalive_time_s"] = _seconds(args[0])
        elif name == "keepalive_requests":
            found[name] = int(args[0])
    return msgspec.structs.replace(outer, **found)


def _listens(args: list[str]) -> Iterator[Listen]:
    """The sockets of a ``listen``: one, or one for each port of a range."""
    place, *options = args
    if place.startswith("unix:"):
        address, ports = place.removeprefix("unix:"), range(1)
    else:
        # A port alone, an address alone (its port is 80), or both; a port may be a range.
        match = re.fullmatch(r"(?:(\[[^\]]*\]|[^:\[\]]*):)?(\d+)(?:-(\d+))?", place) or re.fullmatch(r"(\[[^\]]*\]|[^:]+)", place)
        if match is None:
            raise ValueError(f"unknown form of listen: {place!r}")
        address = (match[1] or "*").strip("[]")
        first = int(match[2]) if match.re.groups > 1 else 80
        last = int(match[3] or first) if match.re.groups > 1 else first
        ports = range(first, min(last, 65_535) + 1)
    backlog = next((int(option.partition("=")[2]) for option in options if option.startswith("backlog=")), None)
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


def _seconds(text: str) -> float:
    """nginx's time: ``75``, ``75s``, ``1h 30m``, ``500ms``."""
    compact = "".join(text.split())
    parts = re.findall(r"(\d+)(ms|[smhdwMy])?", compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ValueError(f"{text!r} is not a time")
    return sum(int(number) * _UNITS[unit or "s"] for number, unit in parts)


def _size(text: str) -> int:
    """A number, with nginx's k and m."""
    factor = {"k": 1024, "m": 1024**2}.get(text[-1].lower(), 1)
    return int(text[:-1] if factor > 1 else text) * factor
