"""The plan: everything a soak is asked to do, immutable and whole.

Flags, TOML files and notebooks all come here as ``{key: raw value}`` and leave as one :class:`Plan`; units are parsed on
this way and nowhere else. ``build_plan`` raises :class:`PlanError` with where, what, and how to mend it.
"""

from __future__ import annotations

import difflib
import os
import re
import secrets
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from asyncli.core.ramp import Ramp
from asyncli.errors import PlanError
from asyncli.units import LONGEST_S, instant_of, parse_count, parse_duration, parse_pace, parse_until, shown

# A connection beats after 1 to keepalive/2 seconds, so below 2 s the interval would be empty.
SHORTEST_KEEPALIVE_S = 2.0
MOST_CONNECTIONS = 10_000_000
#: Where an agent listens, where nothing else is said.
AGENT_PORT = 9165
# Less than a clock can tell apart, and connections a second would not be a number.
SHORTEST_INTERVAL_S = 1e-6
# A plan file is some lines; what is more is another file, or a device without end. And Python's reader of TOML takes seconds for
# some 30,000 bytes, if they are dots.
LONGEST_FILE = 16_384
_AN_HOUR = 3600.0
#: What stands in the place of a header's value wherever a plan is shown or passed on: it may be a secret.
MASK = "***"
# Some headers, as curl's -H @FILE, and not a device without end.
_LONGEST_HEADERS = 65_536
_USERINFO = re.compile(r"((?:[^/?#]*://)?)[^/?#]*@")
_AUTHORITY = re.compile(r"(?:\[(?P<address>[^\[\]]+)\]|[-._0-9A-Za-z]+)(?::(?P<port>[^:]*))?")
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Target(msgspec.Struct, frozen=True):
    """One URL of the server, taken apart: ``host`` without brackets, ``path`` with its query."""

    url: str
    host: str
    port: int
    path: str


class Discreet(msgspec.Struct, frozen=True):
    """A plan whose headers' values are seen by nobody who prints it: a notebook, a log, a traceback."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        said = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return [(name, masked(value) if name == "headers" else value) for name, value in said]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class Plan(Discreet, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a soak does. Times in seconds; ``None`` means "asyncli finds it" unless the field says otherwise."""

    urls: tuple[str, ...]
    connections: int = 1000
    keepalive_s: float = 60.0
    batch: int = 10
    interval_s: float = 0.010
    #: None: hold until stopped, or until ``hold_until``.
    hold_s: float | None = 60.0
    #: A time of day, or of a date, in the words of ``units.parse_until``: ``hold_s`` is reckoned from it when the hold begins.
    hold_until: str | None = None
    baseline_s: float = 5.0
    residue_s: float = 5.0
    #: 0: one even ramp. K: K equal steps with a rest of ``plateau_s`` after each.
    plateaus: int = 0
    plateau_s: float = 10.0
    workers: int | None = None
    sources: tuple[str, ...] = ()
    timeout_s: float = 10.0
    connect_timeout_s: float = 10.0
    status_url: str | None = None
    server_pid: int | None = None
    server_pidfile: str | None = None
    server_name: str | None = None
    #: ``http://host:9165`` of the agent on the server's host, which reads all that in place of us.
    agent: str | None = None
    #: A file with its token (never the token itself), and one with the authority of its certificate.
    agent_token_file: str | None = None
    agent_ca: str | None = None
    method: str = "HEAD"
    headers: tuple[str, ...] = ()
    first_beat: Literal["now", "sleep"] = "now"
    reopen: bool = True
    #: Limits on the run's own numbers, as expressions: what is crossed makes it fail (report/thresholds.py).
    fail_if: tuple[str, ...] = ()
    #: End it at the first of these that is crossed and can only get worse.
    abort: bool = False
    seed: int = 0
    force: bool = False

    @property
    def targets(self) -> tuple[Target, ...]:
        """The URLs taken apart, in order."""
        return tuple(parse_url(url) for url in self.urls)

    @property
    def asked_per_s(self) -> float:
        """The ramp's pace in connections a second."""
        return self.batch / self.interval_s

    @property
    def lasts_s(self) -> float:
        """From the baseline to the residue, without the drain; as if it were held for an hour where nobody knows for how long."""
        hold_s = _AN_HOUR if self.hold_s is None else self.hold_s
        return self.baseline_s + self.schedule.end_s + hold_s + self.residue_s

    @property
    def schedule(self) -> Ramp:
        """The ramp as arithmetic: which batch is due when."""
        return Ramp(self.connections, self.batch, self.interval_s, self.plateaus, self.plateau_s)


def parse_url(value: object) -> Target:
    """An http URL to its parts; ``ValueError`` says what is wrong with it and what to write."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{shown(value)} is not a URL; write for example http://127.0.0.1:8080/")
    if userinfo := _USERINFO.match(value):
        without = f"{userinfo[1]}{MASK}@{value[userinfo.end() :]}"
        raise ValueError(f"{shown(without)} carries a user name; leave it out, and send an Authorization header (--header-file)")
    if any(ch.isspace() or ord(ch) < 33 or ord(ch) == 127 for ch in value):
        raise ValueError(f"{shown(value)} has white space or a control character in it; remove it, or write it as %20")
    if not value.isascii():
        raise ValueError(f"{shown(value)} is not ASCII; percent-encode the path and write the host name as punycode")
    scheme, colon, _ = value.partition("://")
    if not colon:
        raise ValueError(f"{shown(value)} has no scheme; write http://{value[:60]}")
    if scheme.lower() == "https":
        raise ValueError(f"{shown(value)}: https is not built yet; aim at the server's http port")
    if scheme.lower() != "http":
        raise ValueError(f"{shown(value)}: unknown scheme {shown(scheme)}; only http is spoken")
    try:
        parts = urlsplit(value)
        host = parts.hostname
    except ValueError as error:
        raise ValueError(f"{shown(value)} is not a URL ({str(error)[:100]}); write for example http://127.0.0.1:8080/") from None
    if not host:
        raise ValueError(f"{shown(value)} has no host; write for example http://127.0.0.1:8080/")
    match = _AUTHORITY.fullmatch(parts.netloc)
    if match is None or (match["address"] and not _is_address(host)):
        raise ValueError(
            f"{shown(value)}: {shown(parts.netloc)} is no host; write a name or an address (IPv6 in brackets) and its port"
        )
    port_text = "80" if match["port"] is None else match["port"]
    if not port_text.isdigit() or len(port_text) > 5 or not 1 <= int(port_text) <= 65535:
        raise ValueError(f"{shown(value)}: port {shown(port_text)} is not a port; write a number from 1 to 65535")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # RFC 6874: the zone of a link-local address stands behind an encoded "%".
    return Target(url=value, host=host.replace("%25", "%", 1), port=int(port_text), path=path)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _url(value: object) -> str:
    return parse_url(value).url


def _agent(value: object) -> str:
    """Where an agent is: ``http://host[:port]``, or https."""
    scheme, colon, rest = value.partition("://") if isinstance(value, str) else ("", "", "")
    if not colon and not _USERINFO.match(str(value)):
        raise ValueError(f"{shown(value)} is not the address of an agent; write http://HOST:{AGENT_PORT}")
    secure = scheme.lower() == "https"
    try:
        target = parse_url(f"http://{rest}" if secure else value)
    except ValueError as error:
        raise ValueError(f"{error} (of an agent: http://HOST:{AGENT_PORT})") from None
    if target.path != "/":
        raise ValueError(f"{shown(value)} has a path; write http://HOST:{AGENT_PORT}")
    authority = urlsplit(target.url).netloc
    port = "" if re.search(r":[0-9]+\Z", authority) else f":{AGENT_PORT}"
    return f"{'https' if secure else 'http'}://{authority.rstrip(':')}{port}"


def _strings(check: Callable[[str], str]) -> Callable[[object], tuple[str, ...]]:
    """A parser of one text or several. What is none is not shown: it may be a header, and so a secret."""

    def parse(value: object) -> tuple[str, ...]:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list | tuple) or not all(isinstance(one, str) for one in values):
            raise ValueError(f"this {type(value).__name__} is not a text or a list of texts; write it in quotes")
        return tuple(map(check, values))

    return parse


def one_of(*known: str, what: str = "") -> Callable[[object], str]:
    """A parser of a few words."""

    def parse(value: object) -> str:
        if value not in known:
            raise ValueError(f"{shown(value)} is not {what}; write {', '.join(known[:-1])} or {known[-1]}")
        return str(value)

    return parse


def _source(value: str) -> str:
    try:
        if not value.isascii():
            raise ValueError
        return str(ip_address(value.strip()))
    except ValueError:
        raise ValueError(f"{shown(value)} is not an IP address of this host; write for example 127.0.0.2") from None


def _header(value: str) -> str:
    """One header, tidy. No error shows what may be a secret: not the value, and not what has no name before it."""
    name, colon, rest = value.partition(":")
    if not colon or not name or not set(name) <= _TOKEN:
        raise ValueError(f"a text of {len(value):,} characters is not a header; write 'Name: value'")
    if any(ord(ch) < 32 and ch != "\t" for ch in rest) or not rest.isascii() or "\x7f" in rest:
        raise ValueError(f"the value of {shown(name)} has a control or non-ASCII character in it; remove it")
    if name.lower() in {"connection", "content-length", "transfer-encoding"}:
        raise ValueError(f"asyncli sets {name} itself; leave it out")
    return f"{name}: {rest.strip()}"


def with_one_host(headers: tuple[str, ...]) -> tuple[str, ...]:
    """The same. ``ValueError`` where there is more than one Host: a server must answer that with 400 (RFC 9112, section 3.2)."""
    hosts = [one for one in headers if one.lower().startswith("host:")]
    if len(hosts) > 1:
        raise ValueError(f"{shown(hosts[1])} is a second Host, and a request has one; leave the other out")
    return headers


def headers_in(text: str) -> tuple[str, ...]:
    """The headers of a text, one ``Name: value`` a line, as curl's -H @FILE; ``ValueError`` says which line is none."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found.append(_header(line.strip()))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
    return tuple(found)


def _header_file(value: object) -> tuple[str, ...]:
    path = _text(value)
    try:
        with open(path, "rb") as file:
            data = file.read(_LONGEST_HEADERS + 1)
    except OSError as error:
        raise ValueError(f"{shown(path)} cannot be read ({error.strerror}); name a file with one 'Name: value' a line") from None
    if len(data) > _LONGEST_HEADERS:
        raise ValueError(f"{shown(path)} is longer than {_LONGEST_HEADERS:,} bytes; name a file with one 'Name: value' a line")
    try:
        return headers_in(data.decode("utf-8", "replace"))
    except ValueError as error:
        raise ValueError(f"{shown(path)}: {error}") from None


def _keepalive(value: object) -> float:
    seconds = parse_duration(value)
    if seconds < SHORTEST_KEEPALIVE_S:
        raise ValueError(f"{shown(value)} is below 2 s; heartbeats come after 1 to keepalive/2 seconds, so write 2 or more")
    return seconds


def count_to(most: int, otherwise: str) -> Callable[[object], int]:
    """A parser of counts up to ``most``; of more the error says ``otherwise``."""

    def parse(value: object) -> int:
        number = parse_count(value)
        if number > most:
            raise ValueError(f"{shown(value)} is {otherwise}")
        return number

    return parse


_connections = count_to(MOST_CONNECTIONS, "more than one run is built for; write at most 10M")


def above_zero(example: str) -> Callable[[object], float]:
    """A parser of times above zero; ``example`` stands in the error."""

    def parse(value: object) -> float:
        seconds = parse_duration(value)
        if seconds <= 0:
            raise ValueError(f"{shown(value)} is zero; write a time above it, for example {example}")
        return seconds

    return parse


_positive = above_zero("10ms")


def _interval(value: object) -> float:
    seconds = _positive(value)
    if seconds < SHORTEST_INTERVAL_S:
        raise ValueError(f"{shown(value)} is below 1us; write 1us or more, and a larger --batch")
    return seconds


def _hold(value: object) -> float | None:
    try:
        return None if value in (None, "forever") else parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}; a hold may also be 'forever', or 'until 07:00'") from None


def _until(value: object) -> str | None:
    """The words of a hold that ends by the wall clock."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a time of day; write until 07:00, or until 2026-11-22T07:00")
    if not value.strip():
        raise ValueError("'until' has no time behind it; write both in quotes, for example 'until 07:00'")
    words, now_s = parse_until(value), time.time()
    left_s = instant_of(words, now_s) - now_s
    if left_s <= 0:
        raise ValueError(f"{shown(value.strip())} has passed; write a time to come, or a time of day alone")
    if left_s > LONGEST_S:
        raise ValueError(f"{shown(value.strip())} is more than ten years off; write for example until 07:00")
    return words


def _whole(low: int, high: int, what: str) -> Callable[[object], int]:
    def parse(value: object) -> int:
        try:
            number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            raise ValueError(f"{shown(value)} is not {what}; write a whole number from {low} to {high}")
        return number

    return parse


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is neither true nor false; write one of the two")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"{shown(value)} is not a text; write one, in quotes")
    if not "".join(value.split()).isprintable():
        raise ValueError(f"{shown(value)} has control characters in it, or bytes that are not UTF-8; write it without")
    return value


#: key in a plan file (and, with dashes, the flag) -> (field of Plan, parser). The one list of what a plan can say.
KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "urls": ("urls", _strings(_url)),
    "connections": ("connections", _connections),
    "keepalive": ("keepalive_s", _keepalive),
    "batch": ("batch", parse_count),
    "interval": ("interval_s", _interval),
    "hold": ("hold_s", _hold),
    "baseline": ("baseline_s", parse_duration),
    "residue": ("residue_s", parse_duration),
    "plateaus": ("plateaus", _whole(0, 100, "a number of plateaus")),
    "plateau_rest": ("plateau_s", _positive),
    "workers": ("workers", _whole(1, 1000, "a number of processes")),
    "source": ("sources", _strings(_source)),
    "timeout": ("timeout_s", _positive),
    "connect_timeout": ("connect_timeout_s", _positive),
    "status_url": ("status_url", _url),
    "server_pid": ("server_pid", _whole(1, 2**22, "a process id")),
    "server_pidfile": ("server_pidfile", _text),
    "server_name": ("server_name", _text),
    "agent": ("agent", _agent),
    "agent_token_file": ("agent_token_file", _text),
    "agent_ca": ("agent_ca", _text),
    "method": ("method", one_of("HEAD", "GET", "OPTIONS", what="a method for a heartbeat")),
    "header": ("headers", _strings(_header)),
    "first_beat": ("first_beat", one_of("now", "sleep", what="a first beat")),
    "reopen": ("reopen", _boolean),
    "fail_if": ("fail_if", _strings(_text)),
    "abort": ("abort", _boolean),
    "seed": ("seed", _whole(0, 2**63 - 1, "a seed")),
    "force": ("force", _boolean),
}


#: Another way to say a plan's headers, beside "header": by a file that is read when the plan is made.
HEADER_FILE: dict[str, tuple[str, Callable[[object], Any]]] = {"header_file": ("headers", _header_file)}


class Layer(msgspec.Struct, frozen=True):
    """Raw values from one place. ``where`` is a format for errors with ``{key}`` in it: ``"--{key}"``, ``"a.toml: {key}"``."""

    where: str
    values: dict[str, Any]

    def locate(self, key: str) -> str:
        """Where ``key`` stands, in words; flags are written with dashes, and URLs are arguments."""
        if key == "urls" and self.where.startswith("--"):
            return "URL"
        return self.where.format(key=key.replace("_", "-") if self.where.startswith("--") else key)


def _one_by_one(layer: Layer) -> Layer:
    """``ramp`` says two keys at once, and ``hold`` either of two."""
    values = dict(layer.values)
    pace = values.pop("ramp", None)
    if pace is not None:
        try:
            batch, interval_s = parse_pace(pace)
        except ValueError as error:
            raise PlanError(f"{layer.locate('ramp')}: {error}") from None
        if twice := [layer.locate(key) for key in ("batch", "interval") if key in values]:
            what = "both say how fast the ramp is; leave out the one or the other"
            raise PlanError(f"{layer.locate('ramp')} and {' and '.join(twice)}: {what}")
        values |= {"batch": batch, "interval": interval_s}
    if "hold" in values:
        hold = values["hold"]
        by_clock = hold.strip()[5:] if isinstance(hold, str) and hold.strip().lower().startswith("until") else None
        try:
            values["hold_until"] = _until(by_clock)
        except ValueError as error:
            raise PlanError(f"{layer.locate('hold')}: {error}") from None
        values["hold"] = hold if by_clock is None else None
    return Layer(layer.where, values)


def read_plan_file(path: str | os.PathLike[str], keys: Iterable[str] = (*KEYS, *HEADER_FILE, "ramp")) -> Layer:
    """A TOML plan of ``keys`` as a layer. Raises :class:`PlanError` for an unreadable file, bad TOML or an unknown key."""
    known = sorted(keys)
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST_FILE + 1)
        if len(data) > LONGEST_FILE:
            raise PlanError(f"{path}: is longer than {LONGEST_FILE:,} bytes; name a TOML plan, as those in configs/")
        values = tomllib.loads(data.decode().replace("\r\n", "\n"))
    except OSError as error:
        raise PlanError(f"{path}: cannot be read ({error.strerror}); name a TOML plan, as those in configs/") from None
    except (ValueError, RecursionError) as error:  # bad TOML, no UTF-8, a number of 4,301 digits, lists in lists without end
        why = " ".join(str(error).split(";")[0].split())[:200]
        raise PlanError(f"{path}: is not TOML ({why}); see those in configs/ for the form") from None
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(known)}"
            raise PlanError(f"{path}: unknown key {shown(key)}; {hint}")
    return Layer(where=f"{str(path).replace('{', '{{').replace('}', '}}')}: {{key}}", values=values)


def read_layers(
    layers: Iterable[Layer], keys: Mapping[str, tuple[str, Callable[[object], Any]]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The layers, weakest first, by ``keys`` (see KEYS): each field's value, and where it was said. Raises :class:`PlanError`."""
    fields: dict[str, Any] = {}
    located: dict[str, str] = {}
    for layer in layers:
        said: dict[str, Any] = {}
        for key, raw in layer.values.items():
            if key not in keys:
                where = layer.locate(key if key.isprintable() else shown(key))
                raise PlanError(f"{where}: unknown key; the keys are {', '.join(sorted(keys))}")
            field, parse = keys[key]
            try:
                value = parse(raw)
            except ValueError as error:
                raise PlanError(f"{layer.locate(key)}: {error}") from None
            # Headers of the flags and of their file stand beside each other.
            said[field] = (*said[field], *value) if field in said else value
            located[field] = layer.locate(key)
        fields |= said
    try:
        with_one_host(fields.get("headers", ()))
    except ValueError as error:
        raise PlanError(f"{located['headers']}: {error}") from None
    if not fields.get("urls"):
        raise PlanError("no URL given; write one, for example http://127.0.0.1:8080/")
    named = [field for field in ("server_pid", "server_pidfile", "server_name") if fields.get(field) is not None]
    if len(named) > 1:
        where = " and ".join(located[field] for field in named)
        raise PlanError(f"{where}: name the server once, not {len(named)} times; leave all but one out")
    if fields.get("agent") is not None and (twice := [one for one in ("status_url", *named) if fields.get(one) is not None]):
        where = " and ".join(located[field] for field in twice)
        what = "the agent reads the server's status page and processes"
        raise PlanError(f"{located['agent']} and {where}: {what}; give the latter to 'asyncli agent'")
    alone = [field for field in ("agent_token_file", "agent_ca") if fields.get(field) is not None and fields.get("agent") is None]
    if alone:
        raise PlanError(f"{located[alone[0]]}: there is no agent; write --agent http://HOST:{AGENT_PORT}")
    fields.setdefault("seed", secrets.randbits(48))
    return fields, located


def build_plan(layers: Iterable[Layer]) -> Plan:
    """The layers, weakest first, as one plan. A missing seed is drawn, so that the plan kept in the run file repeats the run."""
    fields, located = read_layers(map(_one_by_one, layers), KEYS | HEADER_FILE | {"hold_until": ("hold_until", _until)})
    plan = Plan(**fields)
    if plan.batch > plan.connections:
        plan = msgspec.structs.replace(plan, batch=plan.connections)
    if plan.plateaus > plan.connections:
        what = f"more plateaus ({plan.plateaus}) than connections ({plan.connections})"
        raise PlanError(f"{located['plateaus']}: {what}; write at most {plan.connections}")
    return plan


def masked(headers: Iterable[object]) -> list[str]:
    """``Name: value`` headers without their values: ``Authorization: ***``."""
    return [f"{str(one).partition(':')[0]}: {MASK}" for one in headers]


def shown_plan(plan: Plan) -> dict[str, Any]:
    """The plan as plain data for whatever is shown, written or sent, but for the run file: headers without their values."""
    return {**msgspec.to_builtins(plan), "headers": masked(plan.headers)}


def plan_document(plan: Plan) -> Mapping[str, Any]:
    """The plan as plain data for the run file alone, as a run that is resumed needs it; :func:`load_plan` takes it back."""
    document: Mapping[str, Any] = msgspec.to_builtins(plan)
    return document


def load_plan(document: Mapping[str, Any]) -> Plan:
    """A plan from :func:`plan_document`; raises :class:`PlanError` where it is not one."""
    try:
        plan = msgspec.convert(document, Plan)
    except msgspec.ValidationError as error:
        raise PlanError(f"recorded plan: {str(error)[:200]}") from None
    for field, parse in KEYS.values():
        value = getattr(plan, field)
        try:
            if value is not None:
                parse(value)
        except ValueError as error:
            raise PlanError(f"recorded plan: {field}: {error}") from None
    return plan
