"""Where a server of asyncli listens, and to whom: what agent and page ask of their options in the
same way.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
import stat

from asyncli.model.certificates import identify
from asyncli.model.errors import HostError, PlanError
from asyncli.model.values import is_address

# Each stands for all addresses of the host.
_ALL = ("0.0.0.0", "::")


def parse_address(flag: str, text: str, example: str, hint: str = "") -> tuple[str, int]:
    """The host and the port of ``HOST:PORT``, which ``flag`` names.

    Raises :class:`PlanError` for what is no address; ``hint`` is added to it.
    """
    host, _, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    # Without brackets, the last part of an address of IPv6 would be taken for the port.
    is_ambiguous = ":" in host and not is_bracketed
    is_port = re.fullmatch("[0-9]{1,5}", port) is not None and int(port) <= 65535
    if host == "*" and is_port:
        # getaddrinfo(3) takes it for loopback.
        raise PlanError(
            f"{flag}: '*' is not an address; for all addresses of this host write "
            f"0.0.0.0:{port}, or [::]:{port}"
        )
    if "/" in text or not host or is_ambiguous or not is_port:
        raise PlanError(f"{flag}: {text!r} is not an address; write {example}{hint}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(flag: str, host: str) -> bool:
    """Whether ``host``, which ``flag`` names, is loopback only.

    Raises :class:`HostError` for a name that does not resolve.
    """
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise HostError(
            f"{flag}: {host!r} cannot be resolved ({why}); write an address of this host"
        ) from None
    for *_, place in infos:
        address = str(place[0]).partition("%")[0]
        if not ipaddress.ip_address(address).is_loopback:
            return False
    return True


def url_of(host: str, port: int, *, is_secure: bool) -> str:
    """The address of a server that listens at ``host``, without a path: by this host's name where
    it listens at all addresses.
    """
    scheme = "https" if is_secure else "http"
    named = socket.gethostname() if host in _ALL else host
    if ":" in named and is_address(named.partition("%")[0]):
        named = f"[{named}]"
    return f"{scheme}://{named}:{port}"


def server_tls(flags: tuple[str, str], certificate: str, key: str | None) -> ssl.SSLContext:
    """The context of a server with this certificate and key, which ``flags`` name.

    Raises :class:`HostError` where they cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    return identify(context, flags, certificate, key)


def warning_of_readers(file: str) -> str | None:
    """That other users of this host can read the token in ``file``, and the remedy; None: they
    cannot.
    """
    if os.stat(file).st_mode & (stat.S_IRGRP | stat.S_IROTH):
        return f"warning: other users of this host can read {file}; chmod 600 {file}"
    return None
