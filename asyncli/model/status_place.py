"""Where a server's status page is: a URL, with or without a login, or a path of a Unix socket; and
where a broker is whose $SYS topics take the place of a page.
"""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote

import msgspec

from asyncli.model.masks import MASK, masked_login, masked_page
from asyncli.model.mqtt_values import is_login
from asyncli.model.places import UNIX, parse_place
from asyncli.model.units import shown
from asyncli.model.values import Target, parse_text, parse_url

_LOGIN = re.compile(r"(?P<scheme>https?://)(?P<login>[^/?#@]*)@", re.IGNORECASE)
_BROKER_SCHEMES = ("mqtt", "mqtts")
_BROKER = re.compile(r"(?P<scheme>mqtts?://)(?:(?P<login>[^/?#@]*)@)?", re.IGNORECASE)
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


class BrokerPlace(msgspec.Struct, frozen=True):
    """``user``: "" without a login; ``password``: None without one."""

    target: Target
    user: str = ""
    password: str | None = None


def is_broker(text: str) -> bool:
    """Whether a URL names a broker, whose topics are read, and not a page."""
    return _BROKER.match(text) is not None


def broker_place(text: str) -> BrokerPlace:
    """Parse ``mqtt://user:password@host:port/``; the port is 1883, or 8883 over TLS, if none is
    given. ``ValueError`` says what is wrong; it shows no login.
    """
    match = _BROKER.match(text)
    if match is None:
        raise ValueError(f"{shown(masked_page(text))} is no broker; write mqtt://HOST/")
    target = parse_url(f"{match['scheme']}{text[match.end() :]}", _BROKER_SCHEMES)
    login = match["login"]
    # As a run file has it.
    if login is None or login == MASK:
        return BrokerPlace(target)
    name, colon, raw_password = login.partition(":")
    user = unquote(name)
    password = unquote(raw_password) if colon else None
    if not is_login(user) or not is_login(f"user:{password}"):
        raise ValueError(
            f"{shown(masked_login(text))} has no login that MQTT can send; "
            "write mqtt://USER:PASSWORD@HOST/"
        )
    return BrokerPlace(target, user, password)


def parse_metrics_url(value: object) -> str:
    """Check the URL of a page of metrics, or of a broker."""
    text = parse_text(value)
    if not is_broker(text):
        return parse_status_url(text)
    broker_place(text)
    return text
