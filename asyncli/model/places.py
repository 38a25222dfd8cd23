"""Parses --connect-to and --resolve: connections go to another host, a Unix socket, or given
addresses of a name.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from asyncli.model.units import shown
from asyncli.model.values import Target, is_address, parse_text, parse_url

#: The prefix of a Unix socket.
UNIX = "unix:"
# sockaddr_un has 108 bytes, with the NUL after a path or before an abstract name (unix(7)).
_LONGEST_PATH = 107
# curl's --connect-to: each of the four may be empty, "any" for the first two and "as before" for
# the last two.
_HOST = r"\[[^\[\]]+\]|[^:\[\]]*"
_REDIRECTED = re.compile(
    f"(?P<host>{_HOST}):(?P<port>[0-9]*):(?P<new_host>{_HOST}):(?P<new_port>[0-9]*)"
)
_RESOLVED = re.compile(r"(?P<place>(?:\[[^\[\]]+\]|[^:\[\]]+):[0-9]+):(?P<addresses>.+)")


def parse_place(value: object) -> str:
    """Check ``HOST:PORT``, ``unix:/path`` or ``unix:@name`` for a Unix socket, or curl's
    ``HOST1:PORT1:HOST2:PORT2``: to the second place instead of the first.
    """
    text = parse_text(value)
    if text.startswith(UNIX):
        path = text.removeprefix(UNIX)
        if not re.match("[/@].", path):
            raise ValueError(
                f"{shown(text)} has no absolute path; write for example unix:/run/app.sock"
            )
        size = len(path.encode())
        if size > _LONGEST_PATH:
            raise ValueError(
                f"{shown(text)}: its path has {size} bytes, at most {_LONGEST_PATH} work; "
                "name a link to its folder"
            )
        return text
    redirected = _REDIRECTED.fullmatch(text)
    if redirected is not None:
        _check_redirected(text, redirected)
        return text
    target = parse_url(f"http://{text}")
    if {*text} & {*"/?#"} or urlsplit(target.url).port is None:
        raise ValueError(f"{shown(text)} is not a host and a port; write for example 10.0.0.7:443")
    return text


def _check_redirected(text: str, redirected: re.Match[str]) -> None:
    if not redirected["new_host"] and not redirected["new_port"]:
        raise ValueError(
            f"{shown(text)} names no other host or port; "
            "write for example shop.example:443:10.0.0.7:8443"
        )
    for host, port in (
        (redirected["host"], redirected["port"]),
        (redirected["new_host"], redirected["new_port"]),
    ):
        place = host or "any.example"
        if port:
            place = f"{place}:{port}"
        if {*place} & {*"/?#"}:
            raise ValueError(
                f"{shown(text)} is not HOST1:PORT1:HOST2:PORT2; "
                "write for example shop.example:443:10.0.0.7:8443"
            )
        parse_url(f"http://{place}")


def is_redirected(target: Target, place: str) -> bool:
    """Whether connections to ``target`` go to ``place``: all do, except if it has four parts and
    the first two are another host or port.
    """
    redirected = _REDIRECTED.fullmatch(place)
    if place.startswith(UNIX) or redirected is None:
        return True
    host = redirected["host"]
    if host and parse_url(f"http://{host}").host != target.host:
        return False
    return redirected["port"] in ("", str(target.port))


def parse_resolve(value: str) -> str:
    """Check ``HOST:PORT:ADDRESS[,ADDRESS]``, curl's format."""
    resolved([value])
    return value


def resolved(texts: Iterable[str]) -> dict[tuple[str, int], tuple[str, ...]]:
    """Host and port -> addresses, from ``texts`` of :func:`parse_resolve`."""
    addresses_by_place: dict[tuple[str, int], tuple[str, ...]] = {}
    for text in texts:
        match = _RESOLVED.fullmatch(text)
        addresses = [] if match is None else match["addresses"].split(",")
        addresses = [address.removeprefix("[").removesuffix("]") for address in addresses]
        if match is None or not all(map(is_address, addresses)):
            raise ValueError(
                f"{shown(text)} is not HOST:PORT:ADDRESS; "
                "write for example shop.example:443:10.0.0.7,10.0.0.8"
            )
        target = parse_url(f"http://{match['place']}")
        place = (target.host, target.port)
        known = addresses_by_place.get(place, ())
        addresses_by_place[place] = tuple(dict.fromkeys((*known, *addresses)))
    return addresses_by_place


def aimed(
    target: Target, place: str | None, name: str | None, resolve: Iterable[str] = ()
) -> Target:
    """``target`` with --connect-to (``place``), --sni (``name``) and --resolve applied, if
    given.
    """
    addresses = resolved(resolve).get((target.host, target.port))
    if addresses:
        target = msgspec.structs.replace(target, addresses=addresses)
    if place is not None and is_redirected(target, place):
        host, port = _host_and_port(place, target)
        target = msgspec.structs.replace(
            target, host=host, port=port, called=target.name, asked=target.authority
        )
    if name is not None:
        target = msgspec.structs.replace(target, called=name, asked=target.authority)
    return target


def _host_and_port(place: str, before: Target) -> tuple[str, int]:
    """The host and port of a :class:`Target` for ``place``, instead of those of ``before``."""
    if place.startswith(UNIX):
        return place.removeprefix(UNIX), 0
    redirected = _REDIRECTED.fullmatch(place)
    if redirected is not None:
        host = before.host
        if redirected["new_host"]:
            host = parse_url(f"http://{redirected['new_host']}").host
        return host, int(redirected["new_port"] or before.port)
    target = parse_url(f"http://{place}")
    return target.host, target.port


def sockaddr(address: str, port: int) -> tuple[str, int] | str:
    """The address for connect(). The abstract name of a Unix socket begins with NUL."""
    if port:
        return (address, port)
    return re.sub("^@", "\0", address)


def real_path(address: str) -> str:
    """A Unix socket's path with links resolved; an abstract name is unchanged."""
    if address.startswith("@"):
        return address
    return os.path.realpath(address)


def look_up(target: Target) -> list[tuple[int, str]]:
    """Each address with its family: a Unix socket's path, the plan's addresses, or those of the
    name. May ask a name server. Raises OSError or UnicodeError for an unknown name.
    """
    if not target.port:
        return [(socket.AF_UNIX, target.host)]
    if target.addresses:
        return [(_family_of(address), address) for address in target.addresses]
    # Without AI_ADDRCONFIG: it ignores a family that only loopback has, and refuses even "::1"
    # then.
    answers = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    addresses: dict[tuple[int, str], None] = {}
    for family, _, _, _, address in answers:
        if family in (socket.AF_INET, socket.AF_INET6):
            addresses[int(family), str(address[0])] = None
    return list(addresses)


def _family_of(address: str) -> int:
    if ":" in address:
        return socket.AF_INET6
    return socket.AF_INET
