"""How nginx chooses what answers a request: the listening socket, the server block, the location, and internal redirects.

Pure, but for ``kind_of``, by which the caller looks up files. Sources: "Server names" and "How nginx processes a request"
(nginx.org), ngx_http_core_find_location, ngx_http_find_virtual_server and ngx_http_internal_redirect of nginx 1.22.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import ip_address
from typing import Literal
from urllib.parse import unquote

import msgspec

from asyncli.model.values import Target
from asyncli.preflight.nginx_config import Content, Listen, Location, NginxConfig, ServerBlock, Timers
from asyncli.preflight.patterns import Undecided, matches, substituted

#: What a path is: a file, a folder, neither; None: unknown.
Kind = Literal["file", "folder", "none"] | None
KindOf = Callable[[str], Kind]
#: The locations that a request passes through, the last of which answers it; empty: none, so the server block itself.
Way = tuple[Location, ...]

_WILDCARDS = {"*": "0.0.0.0", "": "0.0.0.0"}
_ANY_IPV4, _ANY_IPV6 = "0.0.0.0", "::"
_LOCALHOST = ("127.0.0.1", "::1")
# nginx gives up after ten internal redirects (NGX_HTTP_MAX_URI_CHANGES).
_MOST_REDIRECTS = 10
# Each file that cannot be looked up doubles the ways.
_MOST_WAYS = 32


class StatusPage(msgspec.Struct, frozen=True):
    """A stub_status page: its URL with --status-url, and the Host that its server block needs; "": any."""

    url: str
    host: str = ""


def file_kind(path: str) -> Kind:
    """The kind of a path on this host, as far as it may be looked up."""
    try:
        return "folder" if os.path.isdir(path) else "file" if os.path.lexists(os.path.realpath(path)) else "none"
    except (OSError, ValueError):
        return None


def unknown_kind(path: str) -> Kind:
    """The same for paths of another host."""
    return None


# -- listening sockets


def listens_for(config: NginxConfig, address: str, port: int) -> list[Listen]:
    """Every ``listen`` of the socket that accepts connections to ``address`` (a name, if it is not known) and ``port``; of a Unix
    socket ``port`` is 0 and ``address`` its path. nginx prefers an address to a wildcard."""
    every = [listen for server in config.servers for listen in server.listens if listen.port == port]
    for place in _sockets_of(every, address, port):
        same = [listen for listen in every if _places(listen) & {place}]
        if same:
            return same
    return []


def listen_for(config: NginxConfig, address: str, port: int) -> Listen | None:
    """The listening socket, with the options that any server block sets."""
    same = listens_for(config, address, port)
    if not same:
        return None
    backlogs = [one.backlog for one in same if one.backlog is not None]
    flags = {name: any(getattr(one, name) for one in same) for name in ("reuseport", "proxy_protocol", "ssl")}
    return msgspec.structs.replace(same[0], backlog=min(backlogs, default=None), **flags)


def _sockets_of(listens: Sequence[Listen], address: str, port: int) -> list[str]:
    """The sockets that a connection may reach, the most exact one first."""
    if not port:
        return [os.path.realpath(address)]
    both_families = any(listen.address == _ANY_IPV6 and not listen.ipv6only for listen in listens)
    exact = _normal(address)
    if exact is None:
        # An address that is not known: any socket of the port, a wildcard first.
        others = [place for listen in listens for place in sorted(_places(listen))]
        return [_ANY_IPV4, _ANY_IPV6, *others]
    if ":" in exact:
        return [exact, _ANY_IPV6]
    return [exact, _ANY_IPV4, *([_ANY_IPV6] if both_families else [])]


def _places(listen: Listen) -> set[str]:
    """The addresses of a ``listen``, in one way of writing."""
    if not listen.port:
        return {os.path.realpath(listen.address)}
    if listen.address.lower() == "localhost":
        return set(_LOCALHOST)
    address = _WILDCARDS.get(listen.address, listen.address)
    return {_normal(address) or address.lower()}


def _normal(address: str) -> str | None:
    """An IP address in one way of writing, without its zone; None for a name."""
    try:
        return str(ip_address(address.partition("%")[0]))
    except ValueError:
        return None


# -- server blocks


def server_for(config: NginxConfig, address: str, port: int, name: str) -> ServerBlock | Undecided | None:
    """The server block that answers requests for the host ``name`` on this socket; None if none listens there, Undecided if a
    pattern among the names is."""
    same = listens_for(config, address, port)
    blocks = [server for server in config.servers if any(listen in same for listen in server.listens)]
    if not blocks:
        return None
    named = _by_name(blocks, name.lower().removesuffix("."))
    if named is not None:
        return named
    for server in blocks:
        if any(listen.default and listen in same for listen in server.listens):
            return server
    return blocks[0]


def _by_name(blocks: Sequence[ServerBlock], host: str) -> ServerBlock | Undecided | None:
    """The block with the most exact name: itself, the longest ``*.x``, the longest ``x.*``, the first pattern."""
    names = [(name, server) for server in blocks for name in server.names]
    for name, server in names:
        if host == name or (name.startswith(".") and host == name[1:]):
            return server
    before = [(name, server) for name, server in names if name.startswith((".", "*.")) and _ends_with(host, name)]
    after = [(name, server) for name, server in names if name.endswith(".*") and host.startswith(name[:-1]) and host != name[:-1]]
    for candidates in (before, after):
        if candidates:
            return max(candidates, key=lambda pair: len(pair[0].removeprefix("*")))[1]
    for name, server in names:
        if not name.startswith("~"):
            continue
        is_match = matches(name[1:], host, fold=True)
        if is_match is None:
            return Undecided(name)
        if is_match:
            return server
    return None


def _ends_with(host: str, name: str) -> bool:
    suffix = name.removeprefix("*")
    return host.endswith(suffix) and host != suffix


# -- locations


def location_for(locations: Sequence[Location], path: str) -> Location | Undecided | None:
    """The location that nginx chooses for ``path``; None if none matches, Undecided if a pattern is."""
    return _find(locations, path)[0]


def _find(locations: Sequence[Location], path: str) -> tuple[Location | Undecided | None, bool]:
    """The location of a level and of those nested in it, and whether it ends the search: patterns of outer levels come after
    prefixes of inner ones."""
    longest: Location | None = None
    for one in locations:
        if one.modifier == "=" and one.pattern == path:
            return one, True
        is_prefix = one.modifier in ("", "^~") and not one.pattern.startswith("@") and path.startswith(one.pattern)
        if is_prefix and (longest is None or len(one.pattern) > len(longest.pattern)):
            longest = one
    chosen: Location | Undecided | None = longest
    if longest is not None:
        nested, is_final = _find(longest.locations, path)
        if is_final:
            return nested, True
        chosen = nested or longest
        if longest.modifier == "^~":
            return chosen, False
    for one in locations:
        if one.modifier not in ("~", "~*"):
            continue
        is_match = matches(one.pattern, path, fold=one.modifier == "~*")
        if is_match is None:
            return Undecided(one.pattern), True
        if is_match:
            return _find(one.locations, path)[0] or one, True
    return chosen, False


# -- the way of a request


def timers_for(server: ServerBlock, path: str, kind_of: KindOf) -> Timers | Undecided:
    """The timers for a request of ``path``, after internal redirects; Undecided if they depend on what cannot be known."""
    timers: Timers | None = None
    for way in ways(server, path, kind_of):
        if isinstance(way, Undecided):
            return way
        found = _timers_of(server, way)
        if timers is not None and found != timers:
            return Undecided(f"a file for {path}")
        timers = found
    return server.timers if timers is None else timers


def _timers_of(server: ServerBlock, way: Way) -> Timers:
    """The last location's; but each location on the way ends keep-alive by its own limits (ngx_http_update_location_config)."""
    if not way:
        return server.timers
    last = way[-1].timers
    if any(one.timers.keepalive_timeout_s == 0 for one in way):
        last = msgspec.structs.replace(last, keepalive_timeout_s=0.0)
    fewest = min(one.timers.keepalive_requests for one in way)
    ages = [one.timers.keepalive_time_s for one in way if one.timers.keepalive_time_s is not None]
    return msgspec.structs.replace(last, keepalive_requests=fewest, keepalive_time_s=min(ages, default=None))


def ways(server: ServerBlock, path: str, kind_of: KindOf) -> Iterator[Way | Undecided]:
    """The ways that a request of ``path`` may take: one, unless the kind of a file is unknown."""
    walk = _Walk(server, kind_of)
    yield from walk.from_server(_normalised(path), (), is_error=False)


def _normalised(path: str) -> str:
    """A request's path as nginx matches it: without its query, decoded, with single slashes and no dots."""
    text = re.sub(r"/{2,}", "/", unquote(path.partition("?")[0], errors="surrogateescape"))
    parts: list[str] = []
    for part in text.split("/"):
        if part == "..":
            parts = parts[:-1] or [""]
        elif part != ".":
            parts.append(part)
    if text.endswith(("/.", "/..")):
        parts.append("")
    return "/".join(parts) or "/"


class _Walk:
    """Follows a request through a server block."""

    def __init__(self, server: ServerBlock, kind_of: KindOf) -> None:
        self._server, self._kind_of = server, kind_of
        self._left = _MOST_WAYS

    def from_server(self, uri: str, way: Way, *, is_error: bool) -> Iterator[Way | Undecided]:
        """From the beginning, where internal redirects begin again."""
        if len(way) > _MOST_REDIRECTS:
            yield way
            return
        step = _rewritten(self._server.content, uri)
        if isinstance(step, Undecided):
            yield step
        elif step.status is not None:
            # Answered by the server block's own return: no location was chosen for it.
            yield way
        else:
            yield from self._find_location(step.uri, way, is_error=is_error)

    def _find_location(self, uri: str, way: Way, *, is_error: bool) -> Iterator[Way | Undecided]:
        location = location_for(self._server.locations, uri)
        if isinstance(location, Undecided) or len(way) > _MOST_REDIRECTS:
            yield location if isinstance(location, Undecided) else way
        elif location is None:
            yield from self._serve(self._server.content, uri, way, is_error=is_error)
        else:
            yield from self._enter(location, uri, way, is_error=is_error)

    def _enter(self, location: Location, uri: str, way: Way, *, is_error: bool) -> Iterator[Way | Undecided]:
        way = (*way, location)
        step = _rewritten(location.content, uri)
        if isinstance(step, Undecided):
            yield step
        elif step.status is not None:
            yield from self._fail(location.content, step.status, way, uri, is_error=is_error)
        elif step.searches:
            yield from self._find_location(step.uri, way, is_error=is_error)
        else:
            yield from self._serve(location.content, step.uri, way, is_error=is_error)

    def _serve(self, content: Content, uri: str, way: Way, *, is_error: bool) -> Iterator[Way | Undecided]:
        """Access, try_files, then the handler: another program, or files."""
        if content.is_denied:
            yield from self._fail(content, 403, way, uri, is_error=is_error)
        elif content.try_files:
            yield from self._try_files(content, uri, way, is_error=is_error)
        elif content.is_handled:
            yield way
        elif uri.endswith("/"):
            yield from self._index(content, uri, way, is_error=is_error)
        else:
            yield from self._by_kind(
                content.file_of(uri),
                {"file": lambda: iter([way]), "folder": lambda: iter([way])},
                lambda: self._fail(content, 404, way, uri, is_error=is_error),
            )

    def _try_files(self, content: Content, uri: str, way: Way, *, is_error: bool) -> Iterator[Way | Undecided]:
        *names, last = content.try_files

        def otherwise() -> Iterator[Way | Undecided]:
            if last.startswith("="):
                return self._fail(content, int(last[1:]), way, uri, is_error=is_error)
            return self._redirect(last, uri, way, is_error=is_error)

        def serve(name: str) -> Iterator[Way | Undecided]:
            found = msgspec.structs.replace(content, try_files=())
            return self._serve(found, name, way, is_error=is_error)

        def attempt(number: int) -> Iterator[Way | Undecided]:
            if number == len(names):
                return otherwise()
            name = _with_uri(names[number], uri)
            if name is None:
                return iter([Undecided(names[number])])
            wanted = "folder" if name.endswith("/") else "file"
            return self._by_kind(content.file_of(name), {wanted: lambda: serve(name)}, lambda: attempt(number + 1))

        yield from attempt(0)

    def _index(self, content: Content, uri: str, way: Way, *, is_error: bool) -> Iterator[Way | Undecided]:
        """ngx_http_index_module: an internal redirect to the first of its files."""

        def attempt(number: int) -> Iterator[Way | Undecided]:
            if number == len(content.index):
                return iter([way]) if content.has_autoindex else self._fail(content, 403, way, uri, is_error=is_error)
            name = content.index[number]
            if name.startswith("/"):
                return self.from_server(name, way, is_error=is_error)
            if "$" in name:
                return iter([Undecided(name)])
            found = {"file": lambda: self.from_server(uri + name, way, is_error=is_error)}
            return self._by_kind(content.file_of(uri + name), found, lambda: attempt(number + 1))

        yield from attempt(0)

    def _fail(self, content: Content, status: int, way: Way, uri: str, *, is_error: bool) -> Iterator[Way | Undecided]:
        """error_page; an error within one has none."""
        page = dict(content.error_pages).get(status)
        if page is None or is_error or not page.startswith(("/", "@")):
            yield way
        else:
            yield from self._redirect(page, uri, way, is_error=True)

    def _redirect(self, to: str, uri: str, way: Way, *, is_error: bool) -> Iterator[Way | Undecided]:
        """An internal redirect to a URI or to a named location."""
        if to.startswith("@"):
            named = next((one for one in self._server.locations if one.pattern == to), None)
            yield from iter([way]) if named is None else self._enter(named, uri, way, is_error=is_error)
            return
        name = _with_uri(to, uri)
        if name is None:
            yield Undecided(to)
        else:
            yield from self.from_server(_normalised(name), way, is_error=is_error)

    def _by_kind(
        self,
        path: str | None,
        known: dict[str, Callable[[], Iterator[Way | Undecided]]],
        otherwise: Callable[[], Iterator[Way | Undecided]],
    ) -> Iterator[Way | Undecided]:
        """The way by the kind of a path, or all ways if it is unknown."""
        kind = None if path is None else self._kind_of(path)
        if kind is not None:
            yield from known.get(kind, otherwise)()
            return
        self._left -= 1
        if self._left <= 0:
            yield Undecided("the files that it serves")
            return
        for follow in (*dict.fromkeys(known.values()), otherwise):
            yield from follow()


class _Step(msgspec.Struct, frozen=True):
    """``uri`` after the rewrites of a level; ``searches``: nginx looks for a location again; ``status``: answered so."""

    uri: str
    searches: bool = False
    status: int | None = None


def _rewritten(content: Content, uri: str) -> _Step | Undecided:
    """``uri`` after ``rewrite`` and ``return`` of a server block or location, in order. Conditions (if) are left out."""
    changed = False
    for pattern, replacement, flag in content.rewrites:
        if flag == "return":
            return _Step(uri, status=int(replacement))
        made = substituted(pattern, uri, replacement)
        if isinstance(made, Undecided):
            return made
        if made is None:
            continue
        if flag in ("redirect", "permanent") or made.startswith(("http://", "https://", "$scheme")):
            return _Step(uri, status=302)
        uri, changed = _normalised(made), True
        if flag in ("last", "break"):
            return _Step(uri, searches=flag == "last")
    return _Step(uri, searches=changed)


def _with_uri(name: str, uri: str) -> str | None:
    """A name of try_files or error_page with ``$uri`` filled; None with other variables, but those of the query."""
    path = name.partition("?")[0]
    text = path.replace("${uri}", uri).replace("$uri", uri)
    text = text.replace("$is_args", "").replace("$args", "")
    return None if "$" in text else text


# -- for the checks


def directives_for(config: NginxConfig, target: Target, address: str) -> dict[str, str]:
    """The directives that apply to ``target``: level and directive -> value ("http keepalive_timeout" -> "75s")."""
    found = dict(config.directives)
    server = server_for(config, address, target.port, target.name)
    if not isinstance(server, ServerBlock):
        return found
    found |= {f"server {name}": text for name, text in server.directives.items()}
    location = location_for(server.locations, _normalised(target.path))
    if isinstance(location, Location):
        found |= {f"location {name}": text for name, text in location.directives.items()}
    return found


def status_pages(config: NginxConfig, targets: Sequence[Target] = ()) -> tuple[StatusPage, ...]:
    """The stub_status pages, with the URLs that reach them from this host. ``targets``: of the plan; a page over TLS at the port
    of one has its name, which the certificate then has too."""
    pages: dict[StatusPage, None] = {}
    for server in config.servers:
        paths = [*(["/"] if server.stub_status else []), *_status_paths(server.locations)]
        for listen in server.listens:
            for path in paths:
                page = _page_of(config, server, listen, path, targets)
                pages[page] = None
    return tuple(pages)


def _status_paths(locations: Iterable[Location]) -> Iterator[str]:
    for one in locations:
        if one.stub_status and one.modifier in ("", "=", "^~") and one.pattern.startswith("/"):
            yield one.pattern
        yield from _status_paths(one.locations)


def _page_of(config: NginxConfig, server: ServerBlock, listen: Listen, path: str, targets: Sequence[Target]) -> StatusPage:
    """The page of a server block by this ``listen``."""
    if not listen.port:
        # The path of the page follows a second colon; without it, it is "/".
        url = f"unix:{listen.address}" + ("" if path == "/" else f":{path}")
        return StatusPage(url, _host_for(config, server, listen.address, 0, ""))
    address = sorted(_places(listen))[0]
    if address in (_ANY_IPV4, _ANY_IPV6):
        address = _LOCALHOST[address == _ANY_IPV6]
    merged = listen_for(config, address, listen.port)
    is_secure = merged is not None and merged.ssl
    named = [one.name for one in targets if is_secure and one.secure and one.port == listen.port]
    name = named[0] if named else address
    shown = f"[{name}]" if ":" in name else name
    host = _host_for(config, server, address, listen.port, name)
    return StatusPage(f"{'https' if is_secure else 'http'}://{shown}:{listen.port}{path}", host)


def _host_for(config: NginxConfig, server: ServerBlock, address: str, port: int, asked: str) -> str:
    """The Host by which nginx chooses ``server``, if it does not without."""
    if server_for(config, address, port, asked) == server:
        return ""
    for name in server.names:
        host = name.removeprefix("*.").removeprefix(".")
        host = f"status.{host}" if name.startswith("*.") else host.replace(".*", ".local")
        if not name.startswith("~") and host and server_for(config, address, port, host) == server:
            return host
    return ""
