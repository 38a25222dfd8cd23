"""Where a server's status page is: a URL, with or without a login, or a path of a Unix socket."""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote

import msgspec

from asyncli.model.places import UNIX, parse_place
from asyncli.model.private_values import MASK, masked_login
from asyncli.model.units import shown
from asyncli.model.values import parse_text, parse_url

_LOGIN = re.compile(r"(?P<scheme>https?://)(?P<login>[^/?#@]*)@", re.IGNORECASE)
# nginx's way to write it in proxy_pass.
_HTTP_UNIX = re.compile(r"http://(?=unix:)", re.IGNORECASE)


class StatusPlace(msgspec.Struct, frozen=True):
    """``url``: what is requested, without a login; ``socket``: the path of a Unix socket, or ``@``
    and its abstract name; "" for TCP. ``headers``: the login's.
    """

    url: str
    socket: str = ""
    headers: tuple[str, ...] = ()


def status_place(text: str) -> StatusPlace:
    """Parse ``http://user:password@host/page`` or ``unix:/path:/page``. ``ValueError`` says what is
    wrong; it shows no login.
    """
    if text.startswith(UNIX):
        path, _, page = text.removeprefix(UNIX).partition(":")
        parse_place(f"{UNIX}{path}")
        return StatusPlace(parse_url(f"http://localhost/{page.removeprefix('/')}").url, path)
    login = _LOGIN.match(text)
    if login is None:
        return StatusPlace(parse_url(text).url)
    url = parse_url(f"{login['scheme']}{text[login.end() :]}").url
    if login["login"] == MASK:
        # As a run file has it.
        return StatusPlace(url)
    name, colon, password = login["login"].partition(":")
    if not colon or not name:
        raise ValueError(
            f"{shown(masked_login(text))} has no password; write http://USER:PASSWORD@HOST/"
        )
    credentials = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return StatusPlace(url, headers=(f"Authorization: Basic {credentials}",))


def parse_status_url(value: object) -> str:
    """Check the URL of a status page."""
    text = _HTTP_UNIX.sub("", parse_text(value))
    status_place(text)
    return text
