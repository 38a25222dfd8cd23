"""How nginx chooses what answers a request: the listening socket, the server block, the location.

Sources: "Server names" and "How nginx processes a request" (nginx.org), ngx_http_core_find_location
and ngx_http_find_virtual_server of nginx 1.22.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from urllib.parse import unquote

import msgspec

from asyncli.model.values import Target
from asyncli.preflight.nginx_blocks import Listen, Location, NginxConfig, ServerBlock
from asyncli.preflight.patterns import Undecided, matches

_ANY_IPV4 = "0.0.0.0"
_ANY_IPV6 = "::"
_WILDCARDS = {"*": _ANY_IPV4, "": _ANY_IPV4}
_LOCALHOST_IPV4 = "127.0.0.1"
_LOCALHOST_IPV6 = "::1"


class StatusAddress(msgspec.Struct, frozen=True):
    """A stub_status page: its URL with --status-url, and the Host that its server block needs; "":
    any.
    """

    url: str
    host: str = ""


# -- listening sockets


def listens_for(config: NginxConfig, address: str, port: int) -> list[Listen]:
    """Every ``listen`` of the socket that accepts connections to ``address`` and ``port``.

    ``address``: a name, if it is not known. Of a Unix socket ``port`` is 0 and ``address`` its
    path. nginx prefers an address to a wildcard.
    """
    of_port = []
    for server in config.servers:
        of_port += [listen for listen in server.listens if listen.port == port]
    for place in _sockets_of(of_port, address, port):
        of_socket = [listen for listen in of_port if place in _places(listen)]
        if of_socket:
            return of_socket
    return []


def listen_for(config: NginxConfig, address: str, port: int) -> Listen | None:
    """The listening socket, with the options that any server block sets."""
    listens = listens_for(config, address, port)
    if not listens:
        return None
    backlogs = [listen.backlog for listen in listens if listen.backlog is not None]
    return msgspec.structs.replace(
        listens[0],
        backlog=min(backlogs, default=None),
        reuseport=any(listen.reuseport for listen in listens),
        proxy_protocol=any(listen.proxy_protocol for listen in listens),
        ssl=any(listen.ssl for listen in listens),
    )


def _sockets_of(listens: Sequence[Listen], address: str, port: int) -> list[str]:
    """The sockets that a connection may reach, the most exact one first."""
    if not port:
        return [os.path.realpath(address)]
    exact = _normal(address)
    if exact is None:
        # An address that is not known: any socket of the port, a wildcard first.
        sockets = [_ANY_IPV4, _ANY_IPV6]
        for listen in listens:
            sockets += sorted(_places(listen))
        return sockets
    if ":" in exact:
        return [exact, _ANY_IPV6]
    if any(listen.address == _ANY_IPV6 and not listen.ipv6only for listen in listens):
        return [exact, _ANY_IPV4, _ANY_IPV6]
    return [exact, _ANY_IPV4]


def _places(listen: Listen) -> set[str]:
    """The addresses of a ``listen``, in one way of writing."""
    if not listen.port:
        return {os.path.realpath(listen.address)}
    if listen.address.lower() == "localhost":
        return {_LOCALHOST_IPV4, _LOCALHOST_IPV6}
    address = _WILDCARDS.get(listen.address, listen.address)
    return {_normal(address) or address.lower()}


def _normal(address: str) -> str | None:
    """An IP address in one way of writing, without its zone; None for a name."""
    try:
        return str(ip_address(address.partition("%")[0]))
    except ValueError:
        return None


# -- server blocks


def server_for(
    config: NginxConfig, address: str, port: int, name: str
) -> ServerBlock | Undecided | None:
    """The server block that answers requests for the host ``name`` on this socket.

    None: none listens there. Undecided: a pattern among the names is.
    """
    of_socket = listens_for(config, address, port)
    blocks = []
    default = None
    for server in config.servers:
        listens = [listen for listen in server.listens if listen in of_socket]
        if listens:
            blocks.append(server)
        if default is None and any(listen.default for listen in listens):
            default = server
    if not blocks:
        return None
    return _named(blocks, name.lower().removesuffix(".")) or default or blocks[0]


def _named(blocks: Sequence[ServerBlock], host: str) -> ServerBlock | Undecided | None:
    """The block with the most exact name: itself, the longest ``*.x``, the longest ``x.*``, the
    first pattern.
    """
    names: list[tuple[str, ServerBlock]] = []
    for server in blocks:
        names += [(name, server) for name in server.names]
    for name, server in names:
        if _is_name_of(name, host):
            return server
    for matches_wildcard in (_ends_with, _begins_with):
        candidates = [(name, server) for name, server in names if matches_wildcard(host, name)]
        if candidates:
            _, server = max(candidates, key=lambda named: len(named[0].removeprefix("*")))
            return server
    return _matching(names, host)


def _is_name_of(name: str, host: str) -> bool:
    """``.x`` is a name of x too."""
    return host == name or (name.startswith(".") and host == name[1:])


def _ends_with(host: str, name: str) -> bool:
    """Whether ``name`` is ``.x`` or ``*.x``, and the host a.x."""
    suffix = name.removeprefix("*")
    return name.startswith((".", "*.")) and host.endswith(suffix) and host != suffix


def _begins_with(host: str, name: str) -> bool:
    """Whether ``name`` is ``x.*``, and the host x.a."""
    prefix = name.removesuffix("*")
    return name.endswith(".*") and host.startswith(prefix) and host != prefix


def _matching(
    names: Sequence[tuple[str, ServerBlock]], host: str
) -> ServerBlock | Undecided | None:
    """The first block of a pattern that matches."""
    for name, server in names:
        if not name.startswith("~"):
            continue
        is_match = matches(name[1:], host, fold=True)
        if is_match is None:
            return Undecided(name)
        if is_match:
            return server
    return None


# -- locations


def location_for(locations: Sequence[Location], path: str) -> Location | Undecided | None:
    """The location that nginx chooses for ``path``; None if none matches, Undecided if a pattern
    is.
    """
    location, _ = _find(locations, path)
    return location


def _find(locations: Sequence[Location], path: str) -> tuple[Location | Undecided | None, bool]:
    """The location of a level and of those nested in it, and whether it ends the search: patterns
    of outer levels come after prefixes of inner ones.
    """
    for location in locations:
        if location.modifier == "=" and location.pattern == path:
            return location, True
    longest = _longest_prefix(locations, path)
    chosen: Location | Undecided | None = longest
    if longest is not None:
        nested, is_final = _find(longest.locations, path)
        if is_final:
            return nested, True
        chosen = nested or longest
        if longest.modifier == "^~":
            return chosen, False
    by_pattern = _first_pattern(locations, path)
    if isinstance(by_pattern, Location):
        nested, _ = _find(by_pattern.locations, path)
        return nested or by_pattern, True
    if by_pattern is not None:
        return by_pattern, True
    return chosen, False


def _longest_prefix(locations: Sequence[Location], path: str) -> Location | None:
    longest: Location | None = None
    for location in locations:
        if location.modifier not in ("", "^~") or location.pattern.startswith("@"):
            continue
        if not path.startswith(location.pattern):
            continue
        if longest is None or len(location.pattern) > len(longest.pattern):
            longest = location
    return longest


def _first_pattern(locations: Sequence[Location], path: str) -> Location | Undecided | None:
    for location in locations:
        if location.modifier not in ("~", "~*"):
            continue
        is_match = matches(location.pattern, path, fold=location.modifier == "~*")
        if is_match is None:
            return Undecided(location.pattern)
        if is_match:
            return location
    return None


def normalised(path: str) -> str:
    """A path as nginx matches it: without its query, decoded, with single slashes and no dots."""
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


# -- for the checks


def directives_for(config: NginxConfig, target: Target, address: str) -> dict[str, str]:
    """The directives that apply to ``target``: level and directive -> value
    ("http keepalive_timeout" -> "75s").
    """
    directives = dict(config.directives)
    server = server_for(config, address, target.port, target.name)
    if not isinstance(server, ServerBlock):
        return directives
    for name, text in server.directives.items():
        directives[f"server {name}"] = text
    location = location_for(server.locations, normalised(target.path))
    if isinstance(location, Location):
        for name, text in location.directives.items():
            directives[f"location {name}"] = text
    return directives


def status_pages(config: NginxConfig, targets: Sequence[Target] = ()) -> tuple[StatusAddress, ...]:
    """The stub_status pages, with the URLs that reach them from this host.

    ``targets``: of the plan. A page over TLS at the port of one has its name, which the certificate
    then has too.
    """
    pages: dict[StatusAddress, None] = {}
    for server in config.servers:
        paths = list(_status_paths(server.locations))
        if server.stub_status:
            paths.insert(0, "/")
        for listen in server.listens:
            for path in paths:
                pages[_page_of(config, server, listen, path, targets)] = None
    return tuple(pages)


def _status_paths(locations: Iterable[Location]) -> Iterator[str]:
    for location in locations:
        is_path = location.modifier in ("", "=", "^~") and location.pattern.startswith("/")
        if location.stub_status and is_path:
            yield location.pattern
        yield from _status_paths(location.locations)


def _page_of(
    config: NginxConfig, server: ServerBlock, listen: Listen, path: str, targets: Sequence[Target]
) -> StatusAddress:
    """The page of a server block by this ``listen``."""
    if not listen.port:
        host = _host_for(config, server, listen.address, 0, "")
        # The path of the page follows a second colon; without it, it is "/".
        if path == "/":
            return StatusAddress(f"unix:{listen.address}", host)
        return StatusAddress(f"unix:{listen.address}:{path}", host)
    address = _address_of(listen)
    merged = listen_for(config, address, listen.port)
    if merged is None or not merged.ssl:
        host = _host_for(config, server, address, listen.port, address)
        return StatusAddress(f"http://{_in_url(address)}:{listen.port}{path}", host)
    name = address
    for target in targets:
        if target.secure and target.port == listen.port:
            name = target.name
            break
    host = _host_for(config, server, address, listen.port, name)
    return StatusAddress(f"https://{_in_url(name)}:{listen.port}{path}", host)


def _address_of(listen: Listen) -> str:
    """The address by which this host reaches a ``listen``."""
    address = min(_places(listen))
    if address == _ANY_IPV4:
        return _LOCALHOST_IPV4
    if address == _ANY_IPV6:
        return _LOCALHOST_IPV6
    return address


def _in_url(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def _host_for(config: NginxConfig, server: ServerBlock, address: str, port: int, asked: str) -> str:
    """The Host by which nginx chooses ``server``, if it does not without."""
    if server_for(config, address, port, asked) == server:
        return ""
    for name in server.names:
        host = _host_with(name)
        if host and server_for(config, address, port, host) == server:
            return host
    return ""


def _host_with(name: str) -> str:
    """A host that a name of a server block stands for; "": unknown, as for a pattern."""
    if name.startswith("~"):
        return ""
    if name.startswith("*."):
        return f"status.{name.removeprefix('*.')}"
    return name.removeprefix(".").replace(".*", ".local")
