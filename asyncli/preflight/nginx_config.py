"""Reads an nginx's configuration on this host; chooses server block and location as nginx does."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from asyncli.collect import locate
from asyncli.collect.procfs import link
from asyncli.model.records import Check
from asyncli.model.trust import ask_server, user_of
from asyncli.model.values import Target
from asyncli.preflight.nginx_files import Directive, NginxFiles, UnreadableError, parse
from asyncli.preflight.patterns import Undecided, matches

# nginx's defaults (nginx.org, ngx_core_module and ngx_http_core_module).
_WORKER_CONNECTIONS, _KEEPALIVE_TIMEOUT_S, _HEADER_TIMEOUT_S, _KEEPALIVE_TIME_S = 512, 75.0, 60.0, 3600.0
# In this version keepalive_requests rose from 100 to 1000 and keepalive_time was added.
_MODERN = (1, 19, 10)
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "M": 2592000.0, "y": 31536000.0}
# Numbers, times, sizes and switches.
_PUBLIC = re.compile(r"(?:(?:on|off|auto|\d{1,9}(?:ms|[smhdwMykKgG])?)(?: |\Z))*|FILE(?: [a-z]{1,9})?")
# Output paths do not change how nginx serves.
_OUTPUT_PATHS = re.compile(r"pid|lock_file|\w+_log|\w+_temp_path")
_WILDCARDS = frozenset({"*", "0.0.0.0", "::", ""})


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
    #: As written in the configuration: "127.0.0.1:8080", "8080".
    place: str = ""


class Timers(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that close a connection, in seconds; ``keepalive_time_s`` None in versions without it."""

    keepalive_timeout_s: float = _KEEPALIVE_TIMEOUT_S
    keepalive_requests: int = 1000
    keepalive_time_s: float | None = _KEEPALIVE_TIME_S
    client_header_timeout_s: float = _HEADER_TIMEOUT_S
    send_timeout_s: float = _HEADER_TIMEOUT_S


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """A location, nested or not: ``modifier`` is "", "=", "^~", "~" or "~*"."""

    modifier: str
    pattern: str
    timers: Timers
    stub_status: bool = False
    #: Its directives, from :func:`_settings`.
    directives: dict[str, str] = msgspec.field(name="said", default_factory=dict)


class ServerBlock(msgspec.Struct, frozen=True, kw_only=True):
    """One server block, with what it inherits."""

    listens: tuple[Listen, ...]
    names: tuple[str, ...] = ()
    timers: Timers = Timers()
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

    def server_for(self, host: str, port: int, path: str = "") -> ServerBlock | Undecided | None:
        """The server block that nginx chooses for ``host`` on ``port``, or on a Unix socket's ``path``; None if none listens
        there, Undecided if a name's pattern is."""
        found = [one for one in self.servers if any(_listens_at(listen, path or host, port) for listen in one.listens)]
        found = found or [one for one in self.servers if any(listen.port == port != 0 for listen in one.listens)]
        for is_name in (str.__eq__, _by_wildcard):
            for one in found:
                for name in one.names:
                    match is_name(name, host.lower()):
                        case True:
                            return one
                        case None:
                            return Undecided(name)
        for one in found:
            if any(listen.default and listen.port == port for listen in one.listens):
                return one
        return found[0] if found else None

    def listen_for(self, host: str, port: int) -> Listen | None:
        """The listening socket for ``port``, with the options that any server block sets."""
        same = [one for server in self.servers for one in server.listens if one.port == port]
        same = [one for one in same if _listens_at(one, host, port)] or (same if port else [])
        if not same:
            return None
        backlogs = [one.backlog for one in same if one.backlog is not None]
        flags = {name: any(getattr(one, name) for one in same) for name in ("reuseport", "proxy_protocol")}
        return msgspec.structs.replace(same[0], backlog=min(backlogs, default=None), **flags)

    def directives_for(self, target: Target) -> dict[str, str]:
        """The directives that apply to ``target``: level and directive -> value ("http keepalive_timeout" -> "75s")."""
        found = dict(self.directives)
        if isinstance(server := self.server_for(target.host, target.port), ServerBlock):
            found |= {f"server {name}": text for name, text in server.directives.items()}
            if isinstance(location := location_for(server, target.path), Location):
                found |= {f"location {name}": text for name, text in location.directives.items()}
        return found

    @property
    def status_urls(self) -> tuple[str, ...]:
        """The URLs of its stub_status pages on this host."""
        urls = []
        for server in self.servers:
            for listen in (one for one in server.listens if one.port):
                paths = [one.pattern for one in server.locations if one.stub_status and one.modifier in ("", "=", "^~")]
                for path in (["/"] if server.stub_status else []) + paths:
                    address = "127.0.0.1" if listen.address in _WILDCARDS else listen.address
                    urls.append(f"http://{f'[{address}]' if ':' in address else address}:{listen.port}{path}")
        return tuple(dict.fromkeys(urls))


def timers_for(server: ServerBlock, path: str) -> Timers | Undecided:
    """The timers for a request of ``path``."""
    match location_for(server, path):
        case None:
            return server.timers
        case Location() as location:
            return location.timers
        case undecided:
            return undecided


def location_for(server: ServerBlock, path: str) -> Location | Undecided | None:
    """The location that nginx chooses for ``path``; None if none matches, Undecided if a pattern is."""
    path = path.partition("?")[0]
    longest: Location | None = None
    for one in server.locations:
        if one.modifier == "=" and one.pattern == path:
            return one
        if one.modifier in ("", "^~") and path.startswith(one.pattern):
            longest = one if longest is None or len(one.pattern) > len(longest.pattern) else longest
    if longest is not None and longest.modifier == "^~":
        return longest
    for one in server.locations:
        if one.modifier in ("~", "~*"):
            is_match = matches(one.pattern, path, fold=one.modifier == "~*")
            if is_match is None:
                return Undecided(one.pattern)
            if is_match:
                return one
    return longest


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
                status = _has(one["block"], "stub_status")
                servers += [_server(sub["block"], timers, status) for sub in one["block"] if sub["directive"] == "server"]
    return NginxConfig(path=str(path), version=version, servers=tuple(servers), **found)


def _server(block: list[Directive], outer: Timers, status: bool) -> ServerBlock:
    timers = _inherit(outer, block)
    listens = [_listen(one["args"]) for one in block if one["directive"] == "listen"]
    # nginx's default: *:80 as root, *:8000 otherwise.
    listens = listens or [Listen(address="*", port=80 if os.geteuid() == 0 else 8000)]
    return ServerBlock(
        listens=tuple(listens),
        names=tuple(str(name).lower() for one in block if one["directive"] == "server_name" for name in one["args"]),
        timers=timers,
        locations=tuple(_locations(block, timers)),
        stub_status=status or _has(block, "stub_status"),
        directives=_settings(block),
    )


def _locations(block: list[Directive], outer: Timers) -> list[Location]:
    found = []
    for one in block:
        if one["directive"] != "location":
            continue
        args = one["args"]
        modifier, pattern = (args[0], args[1]) if len(args) > 1 else ("", args[0])
        if len(args) == 1 and (glued := re.match(r"(=|\^~|~\*|~)(.+)", pattern)):
            modifier, pattern = glued[1], glued[2]
        timers = _inherit(outer, one["block"])
        status = _has(one["block"], "stub_status")
        found.append(
            Location(modifier=modifier, pattern=pattern, timers=timers, stub_status=status, directives=_settings(one["block"]))
        )
        found += _locations(one["block"], timers)
    return found


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


def _listen(args: list[str]) -> Listen:
    """Parse the arguments of ``listen``."""
    place = args[0]
    options = args[1:]
    backlog = next((int(option.partition("=")[2]) for option in options if option.startswith("backlog=")), None)
    if place.startswith("unix:"):
        address, port = place.removeprefix("unix:"), 0
    elif place.isdigit():
        address, port = "*", int(place)
    else:
        match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::(\d+)(?:-\d+)?)?", place)
        if match is None:
            raise ValueError(f"unknown form of listen: {place!r}")
        address, port = match[1].strip("[]"), int(match[2] or 80)
    return Listen(
        address=address,
        port=port,
        backlog=backlog,
        reuseport="reuseport" in options,
        default="default_server" in options or "default" in options,
        proxy_protocol="proxy_protocol" in options,
        place=place,
    )


def _listens_at(listen: Listen, host: str, port: int) -> bool:
    if listen.port != port:
        return False
    if not port:
        return os.path.realpath(listen.address) == os.path.realpath(host)
    return listen.address in _WILDCARDS or listen.address == host or not re.fullmatch(r"[\d.]+|.*:.*", host)


def _by_wildcard(name: str, host: str) -> bool | None:
    """Whether a name with a wildcard, or a pattern, is that of ``host``; None: undecided."""
    if name.startswith("~"):
        return matches(name[1:], host, fold=True)
    if name.startswith("."):
        return host == name[1:] or host.endswith(name)
    return (name.startswith("*.") and host.endswith(name[1:])) or (name.endswith(".*") and host.startswith(name[:-1]))


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
