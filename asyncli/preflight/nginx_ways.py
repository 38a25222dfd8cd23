"""The ways of a request through an nginx: rewrites, locations, files, internal redirects.

Pure, but for ``kind_of``, by which the caller looks up files. Source: ngx_http_internal_redirect,
ngx_http_rewrite_module, ngx_http_index_module and ngx_http_try_files_module of nginx 1.22.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from asyncli.preflight.nginx_blocks import ConnectionLimit, Content, Location, ServerBlock, Timers
from asyncli.preflight.nginx_choice import location_for, normalised
from asyncli.preflight.patterns import Undecided, substituted

#: What a path is: a file, a folder, neither; None: unknown.
Kind = Literal["file", "folder", "none"] | None
KindOf = Callable[[str], Kind]
T = TypeVar("T")


class Passage(NamedTuple):
    """What a request passes: the URL of proxy_pass without its path, whether nginx connects there
    from an address of its own, and the limits on connections. ``server_name``: of the server block,
    the first as written; "" without one.
    """

    proxied: str
    has_proxy_bind: bool
    connection_limits: tuple[ConnectionLimit, ...]
    server_name: str


#: The locations that a request passes through, the last of which answers it; empty: none, so the
#: server block itself.
Way = tuple[Location, ...]
_Ways: TypeAlias = "Iterator[Way | Undecided]"

# nginx gives up after ten internal redirects (NGX_HTTP_MAX_URI_CHANGES).
_MOST_REDIRECTS = 10
# Each file that cannot be looked up doubles the ways.
_MOST_WAYS = 32


def file_kind(path: str) -> Kind:
    """The kind of a path on this host, as far as it may be looked up."""
    try:
        if os.path.isdir(path):
            return "folder"
        if os.path.lexists(os.path.realpath(path)):
            return "file"
    except (OSError, ValueError):
        return None
    return "none"


def unknown_kind(path: str) -> Kind:
    """The same for paths of another host."""
    return None


def timers_for(server: ServerBlock, path: str, kind_of: KindOf) -> Timers | Undecided:
    """The timers for a request of ``path``, after internal redirects.

    Undecided: they depend on what cannot be known.
    """
    return _by_every_way(server, path, kind_of, _timers_of)


def passage_for(server: ServerBlock, path: str, kind_of: KindOf) -> Passage | Undecided:
    """What a request of ``path`` passes on its way."""
    return _by_every_way(server, path, kind_of, _passage_of)


def _by_every_way(
    server: ServerBlock, path: str, kind_of: KindOf, by_way: Callable[[ServerBlock, Way], T]
) -> T | Undecided:
    """What all ways of a request have in common; without any, what the server block has. Undecided
    where they differ.
    """
    known: T | None = None
    for way in ways(server, path, kind_of):
        if isinstance(way, Undecided):
            return way
        of_way = by_way(server, way)
        if known is not None and of_way != known:
            return Undecided(f"a file for {path}")
        known = of_way
    return by_way(server, ()) if known is None else known


def _passage_of(server: ServerBlock, way: Way) -> Passage:
    """The last location passes it on; nginx counts a request once, by the first location that has
    limits (ngx_http_limit_conn_handler).
    """
    contents = [location.content for location in way] or [server.content]
    last = contents[-1]
    limits: tuple[ConnectionLimit, ...] = ()
    for content in contents:
        if content.connection_limits:
            if not content.limits_are_dry:
                limits = content.connection_limits
            break
    server_name = next(iter(server.names), "")
    return Passage(last.proxied, last.has_proxy_bind, limits, server_name)


def _timers_of(server: ServerBlock, way: Way) -> Timers:
    """The last location's; but each location on the way ends keep-alive by its own limits
    (ngx_http_update_location_config).
    """
    if not way:
        return server.timers
    every = [location.timers for location in way]
    last = every[-1]
    if any(timers.keepalive_timeout_s == 0 for timers in every):
        last = msgspec.structs.replace(last, keepalive_timeout_s=0.0)
    requests = min(timers.keepalive_requests for timers in every)
    ages = [timers.keepalive_time_s for timers in every if timers.keepalive_time_s is not None]
    return msgspec.structs.replace(
        last, keepalive_requests=requests, keepalive_time_s=min(ages, default=None)
    )


def ways(server: ServerBlock, path: str, kind_of: KindOf) -> _Ways:
    """The ways that a request of ``path`` may take: one, unless the kind of a file is unknown."""
    yield from _Walk(server, kind_of).from_server(_Request(normalised(path)))


class _Request(msgspec.Struct, frozen=True):
    """A request on its way. ``is_error``: it asks for an error's page."""

    uri: str
    way: Way = ()
    is_error: bool = False

    def at(self, uri: str) -> _Request:
        return msgspec.structs.replace(self, uri=uri)


class _Walk:
    """Follows a request through a server block."""

    def __init__(self, server: ServerBlock, kind_of: KindOf) -> None:
        self._server = server
        self._kind_of = kind_of
        self._left = _MOST_WAYS

    def from_server(self, request: _Request) -> _Ways:
        """From the beginning, where internal redirects begin again."""
        if len(request.way) > _MOST_REDIRECTS:
            yield request.way
            return
        step = _rewritten(self._server.content, request.uri)
        if isinstance(step, Undecided):
            yield step
        elif step.status is not None:
            # Answered by the server block's own return: no location was chosen for it.
            yield request.way
        else:
            yield from self._find_location(request.at(step.uri))

    def _find_location(self, request: _Request) -> _Ways:
        location = location_for(self._server.locations, request.uri)
        if isinstance(location, Undecided):
            yield location
        elif len(request.way) > _MOST_REDIRECTS:
            yield request.way
        elif location is None:
            yield from self._serve(self._server.content, request)
        else:
            yield from self._enter(location, request)

    def _enter(self, location: Location, request: _Request) -> _Ways:
        request = msgspec.structs.replace(request, way=(*request.way, location))
        step = _rewritten(location.content, request.uri)
        if isinstance(step, Undecided):
            yield step
        elif step.status is not None:
            yield from self._fail(location.content, step.status, request)
        elif step.searches:
            yield from self._find_location(request.at(step.uri))
        else:
            yield from self._serve(location.content, request.at(step.uri))

    def _serve(self, content: Content, request: _Request) -> _Ways:
        """Access, try_files, then the handler: another program, or files."""
        if content.is_denied:
            yield from self._fail(content, 403, request)
        elif content.try_files:
            yield from self._try_files(content, request)
        elif content.is_handled:
            yield request.way
        elif request.uri.endswith("/"):
            yield from self._index(content, request)
        else:
            yield from self._serve_file(content, request)

    def _serve_file(self, content: Content, request: _Request) -> _Ways:
        exists = self._can_be(("file", "folder"), content.file_of(request.uri))
        if isinstance(exists, Undecided):
            yield exists
            return
        if True in exists:
            yield request.way
        if False in exists:
            yield from self._fail(content, 404, request)

    def _try_files(self, content: Content, request: _Request) -> _Ways:
        """The first of the names that exists, else the last one, which is a status or a URI."""
        *names, last = content.try_files
        tried = msgspec.structs.replace(content, try_files=())
        for name in names:
            uri = _with_uri(name, request.uri)
            if uri is None:
                yield Undecided(name)
                return
            kind = "folder" if uri.endswith("/") else "file"
            exists = self._can_be((kind,), content.file_of(uri))
            if isinstance(exists, Undecided):
                yield exists
                return
            if True in exists:
                yield from self._serve(tried, request.at(uri))
            if False not in exists:
                return
        if last.startswith("="):
            yield from self._fail(content, int(last[1:]), request)
        else:
            yield from self._redirect(last, request)

    def _index(self, content: Content, request: _Request) -> _Ways:
        """ngx_http_index_module: an internal redirect to the first of its files."""
        for name in content.index:
            if name.startswith("/"):
                yield from self.from_server(request.at(name))
                return
            if "$" in name:
                yield Undecided(name)
                return
            uri = request.uri + name
            exists = self._can_be(("file",), content.file_of(uri))
            if isinstance(exists, Undecided):
                yield exists
                return
            if True in exists:
                yield from self.from_server(request.at(uri))
            if False not in exists:
                return
        if content.has_autoindex:
            yield request.way
        else:
            yield from self._fail(content, 403, request)

    def _fail(self, content: Content, status: int, request: _Request) -> _Ways:
        """error_page; an error within one has none."""
        page = dict(content.error_pages).get(status)
        if page is None or request.is_error or not page.startswith(("/", "@")):
            yield request.way
        else:
            yield from self._redirect(page, msgspec.structs.replace(request, is_error=True))

    def _redirect(self, to: str, request: _Request) -> _Ways:
        """An internal redirect to a URI or to a named location."""
        if to.startswith("@"):
            yield from self._enter_named(to, request)
            return
        uri = _with_uri(to, request.uri)
        if uri is None:
            yield Undecided(to)
        else:
            yield from self.from_server(request.at(normalised(uri)))

    def _enter_named(self, name: str, request: _Request) -> _Ways:
        for location in self._server.locations:
            if location.pattern == name:
                yield from self._enter(location, request)
                return
        yield request.way

    def _can_be(self, kinds: Collection[str], path: str | None) -> tuple[bool, ...] | Undecided:
        """Whether a path is of these kinds; both answers, if that is unknown."""
        kind = None if path is None else self._kind_of(path)
        if kind is not None:
            return (kind in kinds,)
        self._left -= 1
        if self._left <= 0:
            return Undecided("the files that it serves")
        return (True, False)


class _Step(msgspec.Struct, frozen=True):
    """``uri`` after the rewrites of a level.

    ``searches``: nginx looks for a location again; ``status``: answered so.
    """

    uri: str
    searches: bool = False
    status: int | None = None


def _rewritten(content: Content, uri: str) -> _Step | Undecided:
    """``uri`` after ``rewrite`` and ``return`` of a server block or location, in order. Conditions
    (if) are left out.
    """
    is_changed = False
    for pattern, replacement, flag in content.rewrites:
        if flag == "return":
            return _Step(uri, status=int(replacement))
        rewritten = substituted(pattern, uri, replacement)
        if isinstance(rewritten, Undecided):
            return rewritten
        if rewritten is None:
            continue
        is_url = rewritten.startswith(("http://", "https://", "$scheme"))
        if is_url or flag in ("redirect", "permanent"):
            return _Step(uri, status=302)
        uri = normalised(rewritten)
        is_changed = True
        if flag in ("last", "break"):
            return _Step(uri, searches=flag == "last")
    return _Step(uri, searches=is_changed)


def _with_uri(name: str, uri: str) -> str | None:
    """A name of try_files or error_page with ``$uri`` filled; None with other variables, but those
    of the query.
    """
    path = name.partition("?")[0]
    text = path.replace("${uri}", uri).replace("$uri", uri)
    text = text.replace("$is_args", "").replace("$args", "")
    return None if "$" in text else text
