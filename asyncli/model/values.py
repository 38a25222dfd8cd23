"""Parsers of a plan's values: URLs, headers, counts and times. Each raises ``ValueError`` with what
to write.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import PurePath
from urllib.parse import SplitResult, urlsplit

import msgspec

from asyncli.model.masks import MASK, masked_url
from asyncli.model.protocol_table import PROTOCOLS, SCHEMES
from asyncli.model.units import (
    LONGEST_S,
    instant_of,
    parse_count,
    parse_duration,
    parse_until,
    shown,
)

# Heartbeats come after 1 to keepalive/2 seconds, so below 2 s there would be no interval.
SHORTEST_KEEPALIVE_S = 2.0
MOST_CONNECTIONS = 10_000_000
#: An agent's default port.
AGENT_PORT = 9165
# A clock cannot resolve less, and the rate would not be a number.
SHORTEST_INTERVAL_S = 1e-6
_HTTP = ("http", "https")
_EXAMPLE = "write for example http://127.0.0.1:8080/"
# Protocol names that are mistaken for schemes.
_ALIASES = {"h2c": "http2", "h2": "http2"}
# Enough for headers, as in curl's -H @FILE, and a limit for endless devices.
_LONGEST_SECRETS = 65_536
_USERINFO = re.compile(r"((?:[^/?#]*://)?)[^/?#]*@")
_AUTHORITY = re.compile(r"(?:\[(?P<address>[^\[\]]+)\]|[-._0-9A-Za-z]+)(?::(?P<port>[^:]*))?")
# Except the tab, which a header's value may have.
_CONTROLS = frozenset(map(chr, (*range(32), 127))) - {"\t"}
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Target(msgspec.Struct, frozen=True):
    """A parsed URL of the server: ``host`` without brackets, ``path`` with its query.

    A Unix socket has port 0, and ``host`` is its path, or ``@`` and its abstract name.
    """

    url: str
    host: str
    port: int
    path: str
    secure: bool = False
    protocol: str = "http"
    #: With --connect-to or --sni: the name for TLS, and the authority for requests; "": those of
    #: ``host``.
    called: str = ""
    asked: str = ""
    #: The plan's addresses for ``host``, used instead of a name server.
    addresses: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The host without its zone, which is meaningful only on this host (RFC 6874)."""
        return self.called or self.host.partition("%")[0]

    @property
    def authority(self) -> str:
        """Host and port for a request."""
        if self.asked:
            return self.asked
        host = f"[{self.name}]" if ":" in self.name else self.name
        ports = PROTOCOLS[self.protocol].ports
        if ports is not None and self.port == ports[self.secure]:
            return host
        return f"{host}:{self.port}"


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The TLS options of a test. Files are PEM, and must exist on every client host."""

    ca: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    insecure: bool = False
    tls_min: str | None = None
    tls_max: str | None = None
    tls_ciphers: str | None = None
    #: Protocols to offer by ALPN, with commas; None: those of the plan's protocol.
    alpn: str | None = None
    tls_resume: bool = False


def parse_url(value: object, schemes: tuple[str, ...] = _HTTP) -> Target:
    """Parse a URL with one of ``schemes``. ``ValueError`` says what is wrong and what to write."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{_shown_url(value)} is not a URL; {_EXAMPLE}")
    protocol, secure = SCHEMES[_scheme_of(value, schemes)]
    parts, host = _split(value)
    port_text = _port_text(value, parts.netloc, host)
    if not _is_complete(parts, protocol, port_text):
        example = f"{parts.scheme}://127.0.0.1:{_usual_port(protocol, secure=secure) or 6379}"
        raise ValueError(
            f"{_shown_url(value)} is not a host and a port; write for example {example}"
        )
    if protocol == "websocket" and parts.fragment:
        raise ValueError(
            f"{_shown_url(value)} has a fragment, which WebSocket forbids (RFC 6455, section 3); "
            "leave it out"
        )
    if port_text is None:
        port_text = str(_usual_port(protocol, secure=secure))
    port = _port_number(value, port_text)
    path = parts.path or "/"
    if parts.query:
        path = f"{path}?{parts.query}"
    # RFC 6874: the zone of a link-local address follows an encoded "%".
    host = host.replace("%25", "%", 1)
    return Target(url=value, host=host, port=port, path=path, secure=secure, protocol=protocol)


def _shown_url(value: object) -> str:
    """A URL quoted for an error, or what a user wrote in place of one, without its query."""
    return shown(masked_url(value) if isinstance(value, str) else value)


def _scheme_of(value: str, schemes: tuple[str, ...]) -> str:
    """The scheme of a URL, which may be invalid."""
    _require_no_user_name(value)
    _require_printable_ascii(value)
    masked = masked_url(value)
    scheme, colon, _ = masked.partition("://")
    if not colon:
        raise ValueError(
            f"{_shown_url(value)} has no scheme; "
            f"write {schemes[0]}://{masked[:60]} (or {', '.join(schemes[1:])})"
        )
    protocol_name = _ALIASES.get(scheme.lower(), scheme.lower())
    protocol = PROTOCOLS.get(protocol_name)
    takes_all_schemes = len(schemes) == len(SCHEMES)
    if protocol is not None and protocol.flag and takes_all_schemes:
        raise ValueError(
            f"{_shown_url(value)}: {shown(scheme)} is not a scheme; "
            f"write {protocol.schemes[0]}:// and {protocol.flag}"
        )
    if scheme.lower() not in schemes:
        raise ValueError(
            f"{_shown_url(value)}: unknown scheme {shown(scheme)}; "
            f"write {', '.join(schemes[:-1])} or {schemes[-1]}"
        )
    return scheme.lower()


def _require_no_user_name(value: str) -> None:
    userinfo = _USERINFO.match(value)
    if userinfo is None:
        return
    masked = f"{userinfo[1]}{MASK}@{value[userinfo.end() :]}"
    if value.lower().startswith("mqtt"):
        remedy = "write --mqtt-login-file FILE"
    else:
        remedy = "send an Authorization header (--header-file)"
    raise ValueError(f"{_shown_url(masked)} carries a user name; leave it out, and {remedy}")


def _require_printable_ascii(value: str) -> None:
    for character in value:
        if character.isspace() or ord(character) < 33 or ord(character) == 127:
            raise ValueError(
                f"{_shown_url(value)} has white space or a control character; "
                "remove it, or write it as %20"
            )
    if not value.isascii():
        raise ValueError(
            f"{_shown_url(value)} is not ASCII; "
            "percent-encode the path and write the host name as punycode"
        )


def _split(value: str) -> tuple[SplitResult, str]:
    """The parts of a URL, and its host without brackets."""
    try:
        parts = urlsplit(value)
        host = parts.hostname
    except ValueError as error:
        raise ValueError(
            f"{_shown_url(value)} is not a URL ({str(error)[:100]}); {_EXAMPLE}"
        ) from None
    if not host:
        raise ValueError(f"{_shown_url(value)} has no host; {_EXAMPLE}")
    return parts, host


def _port_text(value: str, authority: str, host: str) -> str | None:
    """What a URL has as its port, which may be invalid; None if it has no colon for one."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None or (match["address"] and not is_address(host)):
        raise ValueError(
            f"{_shown_url(value)}: {shown(authority)} is not a host; "
            "write a name or an address (IPv6 in brackets) and its port"
        )
    return match["port"]


def _is_complete(parts: SplitResult, protocol: str, port_text: str | None) -> bool:
    """Whether a URL has what its protocol needs, and nothing that its protocol has not."""
    if port_text is None and PROTOCOLS[protocol].ports is None:
        return False
    if PROTOCOLS[protocol].asks_by_http:
        return True
    return parts.path in ("", "/") and not parts.query and not parts.fragment


def _usual_port(protocol: str, *, secure: bool) -> int | None:
    ports = PROTOCOLS[protocol].ports
    if ports is None:
        return None
    return ports[secure]


def _port_number(value: str, text: str) -> int:
    if not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise ValueError(
            f"{_shown_url(value)}: port {shown(text)} is not a port; write a number from 1 to 65535"
        )
    return int(text)


def is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def checked_url(value: object) -> str:
    return parse_url(value).url


def parse_target(value: object) -> Target:
    """Parse the URL of the server under test."""
    return parse_url(value, tuple(SCHEMES))


def checked_target(value: object) -> str:
    return parse_target(value).url


def parse_agent(value: object) -> str:
    """Parse an agent's address, ``http://host[:port]`` or https; the default port is added."""
    if "://" not in str(value) and not _USERINFO.match(str(value)):
        raise ValueError(
            f"{_shown_url(value)} is not the address of an agent; write http://HOST:{AGENT_PORT}"
        )
    try:
        target = parse_url(value)
    except ValueError as error:
        raise ValueError(f"{error} (for an agent: http://HOST:{AGENT_PORT})") from None
    if target.path != "/":
        raise ValueError(f"{_shown_url(value)} has a path; write http://HOST:{AGENT_PORT}")
    scheme = "https" if target.secure else "http"
    authority = urlsplit(target.url).netloc
    if re.search(r":[0-9]+\Z", authority):
        return f"{scheme}://{authority}"
    return f"{scheme}://{authority}:{AGENT_PORT}"


def each_of(check: Callable[[str], str]) -> Callable[[object], tuple[str, ...]]:
    """A parser of one text or a list of texts, or of paths. Errors do not show other values: they
    may be headers, and so secret.
    """

    def parse(value: object) -> tuple[str, ...]:
        texts = value if isinstance(value, list | tuple) else [value]
        texts = [str(text) if isinstance(text, PurePath) else text for text in texts]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(
                f"this {type(value).__name__} is not a text or a list of texts; write it in quotes"
            )
        return tuple(map(check, texts))

    return parse


def one_of(*known: str, what: str = "") -> Callable[[object], str]:
    """A parser that accepts only the texts ``known``; ``what``: for its error."""

    def parse(value: object) -> str:
        if value not in known:
            choices = f"{', '.join(known[:-1])} or {known[-1]}"
            raise ValueError(f"{shown(value)} is not {what}; write {choices}")
        return str(value)

    return parse


def parse_source(value: str) -> str:
    try:
        if not value.isascii():
            raise ValueError
        return str(ip_address(value.strip()))
    except ValueError:
        raise ValueError(
            f"{shown(value)} is not an IP address of this host; write for example 127.0.0.2"
        ) from None


def parse_collect(value: object) -> str | None:
    """Check how a collection is asked for: ``auto``, ``none`` (None), or a URL.

    A command is no part of a plan, which may be a stranger's.
    """
    text = parse_text(value).strip()
    if text == "none":
        return None
    if text == "auto":
        return text
    if not is_page(text):
        raise ValueError(
            f"{shown(text)} is none of auto, none and http://HOST/PATH; a command is given on the "
            "command line alone (--collect 'COMMAND {pid}')"
        )
    parse_url(text)
    return text


def is_page(text: str) -> bool:
    """Whether a text is the URL of a page, and not a command."""
    return text.startswith(("http://", "https://"))


def parse_header(value: str) -> str:
    """Normalize a header. Errors do not show what may be secret: the value, or a text without a
    name.
    """
    name, colon, field_value = value.partition(":")
    if not colon or not name or not set(name) <= _TOKEN:
        raise ValueError(
            f"a text of {len(value):,} characters is not a header; write 'Name: value'"
        )
    if not field_value.isascii() or not _CONTROLS.isdisjoint(field_value):
        raise ValueError(
            f"the value of {shown(name)} has a control or non-ASCII character; remove it"
        )
    if name.lower() in {"connection", "content-length", "transfer-encoding"}:
        raise ValueError(f"asyncli sets {name} itself; leave it out")
    return f"{name}: {field_value.strip()}"


def with_one_host(headers: tuple[str, ...]) -> tuple[str, ...]:
    """``headers``. Raises ``ValueError`` for a second Host: servers must answer that with 400
    (RFC 9112, section 3.2).
    """
    hosts = [header for header in headers if header.lower().startswith("host:")]
    if len(hosts) > 1:
        raise ValueError(f"{shown(hosts[1])} is a second Host header; leave one out")
    return headers


def headers_in(text: str) -> tuple[str, ...]:
    """The headers of a text, one ``Name: value`` per line, as in curl's -H @FILE. ``ValueError``
    names the wrong line.
    """
    headers = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            headers.append(parse_header(line.strip()))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return tuple(headers)


def parse_header_file(value: object) -> tuple[str, ...]:
    path = parse_file(value)
    text = read_text(path, "name a file with one 'Name: value' per line")
    try:
        return headers_in(text)
    except ValueError as error:
        raise ValueError(f"{shown(path)}: {error}") from None


def read_text(path: str, remedy: str) -> str:
    """The text of a file with secrets, which errors do not show."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LONGEST_SECRETS + 1)
    except OSError as error:
        raise ValueError(f"{shown(path)} cannot be read ({error.strerror}); {remedy}") from None
    if len(data) > _LONGEST_SECRETS:
        raise ValueError(f"{shown(path)} is longer than {_LONGEST_SECRETS:,} bytes; {remedy}")
    try:
        # Without the byte order mark that editors of Windows write.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{shown(path)} is not UTF-8; {remedy}") from None


def parse_keepalive(value: object) -> float:
    seconds = parse_duration(value)
    if seconds < SHORTEST_KEEPALIVE_S:
        raise ValueError(
            f"{shown(value)} is below 2 s; "
            "heartbeats come after 1 to keepalive/2 seconds, so write 2 or more"
        )
    return seconds


def count_to(limit: int, otherwise: str) -> Callable[[object], int]:
    """A parser of counts up to ``limit``; ``otherwise``: what the error says of a greater one."""

    def parse(value: object) -> int:
        number = parse_count(value)
        if number > limit:
            raise ValueError(f"{shown(value)} is {otherwise}")
        return number

    return parse


parse_connections = count_to(MOST_CONNECTIONS, "more than one run is built for; write at most 10M")


def above_zero(example: str) -> Callable[[object], float]:
    """A parser of durations above zero; ``example``: for its error."""

    def parse(value: object) -> float:
        seconds = parse_duration(value)
        if seconds <= 0:
            raise ValueError(f"{shown(value)} is zero; write a longer time, for example {example}")
        return seconds

    return parse


parse_positive = above_zero("10ms")


def parse_interval(value: object) -> float:
    seconds = parse_positive(value)
    if seconds < SHORTEST_INTERVAL_S:
        raise ValueError(f"{shown(value)} is below 1us; write 1us or more, and a larger --batch")
    return seconds


def parse_hold(value: object) -> float | None:
    if value in (None, "forever"):
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}; a hold may also be 'forever', or 'until 07:00'") from None


def parse_hold_until(value: object) -> str | None:
    """Check the time of day or date at which a hold ends; it must be in the future."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(
            f"{shown(value)} is not a time of day; write until 07:00, or until 2026-11-22T07:00"
        )
    text = value.strip()
    if not text:
        raise ValueError(
            "'until' has no time after it; write both in quotes, for example 'until 07:00'"
        )
    until = parse_until(value)
    now_s = time.time()
    left_s = instant_of(until, now_s) - now_s
    if left_s <= 0:
        raise ValueError(f"{shown(text)} has passed; write a future time, or a time of day alone")
    if left_s > LONGEST_S:
        raise ValueError(
            f"{shown(text)} is more than ten years away; write for example until 07:00"
        )
    return until


def whole_number(low: int, high: int, what: str) -> Callable[[object], int]:
    def parse(value: object) -> int:
        number = _integer_of(value)
        if number is None or not low <= number <= high:
            raise ValueError(
                f"{shown(value)} is not {what}; write a whole number from {low} to {high}"
            )
        return number

    return parse


def _integer_of(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None


def parse_boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is neither true nor false; write one of the two")
    return value


def parse_text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"{shown(value)} is not a text; write one, in quotes")
    if not "".join(value.split()).isprintable():
        raise ValueError(
            f"{shown(value)} has control characters, or bytes that are not UTF-8; "
            "write it without them"
        )
    return value


def parse_silence(value: object) -> float:
    """How long a connection that listens may receive nothing (s); ``forever``: longer than any
    run.
    """
    if value == "forever":
        return LONGEST_S
    return parse_positive(value)


def parse_file(value: object) -> str:
    if value == "":
        raise ValueError("is empty; name a file, or leave it out")
    return parse_text(value)


_version = one_of("1.2", "1.3", what="a version of TLS")


def parse_alpn(value: object) -> str:
    """Check names of protocols for ALPN, with commas between them (RFC 7301: 1 to 255 bytes
    each).
    """
    text = parse_text(value)
    if not all(map(_can_be_in_alpn, text.split(","))):
        raise ValueError(
            f"{shown(value)} is not a list of protocols; write for example mqtt, or h2,http/1.1"
        )
    return text


def _can_be_in_alpn(name: str) -> bool:
    if not 1 <= len(name) <= 255:
        return False
    return name.isascii() and name.isprintable() and name == name.strip()


def parse_tls_version(value: object) -> str:
    """Parse a TLS version; TOML and Python may give a number."""
    if isinstance(value, float):
        return _version(str(value))
    return _version(value)
