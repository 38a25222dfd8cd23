"""The plan of a soak, immutable and complete.

Flags, TOML files and notebooks give ``{key: raw value}``, which ``build_plan`` parses into one
:class:`Plan`. A :class:`PlanError` says where, what, and the remedy.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from asyncli.core.events import Reconnect
from asyncli.core.ramp import Ramp
from asyncli.model import values
from asyncli.model.consistency import require_consistent
from asyncli.model.errors import PlanError
from asyncli.model.metrics_map import parse_metrics_map
from asyncli.model.mqtt_values import (
    parse_client_id,
    parse_login_file,
    parse_subscription,
    parse_version,
)
from asyncli.model.places import UNIX, aimed, parse_place, parse_resolve
from asyncli.model.planned_events import (
    PlannedEvent,
    parse_churn,
    parse_events,
    parse_reconnect,
    planned_event,
    reconnect_of,
)
from asyncli.model.private_values import without_secrets
from asyncli.model.protocol_table import OWN_KEYS, PROTOCOLS, STREAMS, Requests, requests_of
from asyncli.model.records import CHURN
from asyncli.model.status_place import parse_metrics_url, parse_status_url
from asyncli.model.tcp_values import checked_expected, parse_sent
from asyncli.model.units import (
    LONGEST_S,
    format_duration,
    parse_count,
    parse_duration,
    parse_pace,
    shown,
)

_AN_HOUR = 3600.0
# Longer than the minute after which proxies close silent connections (WHATWG's specification), so
# that the close is seen.
_STREAM_SILENCE_S = 90.0


class RedactedPlan(values.TlsOptions, frozen=True):
    """A plan that hides its secrets when printed: in a notebook, a log, a traceback. It omits
    optional fields that are not set.
    """

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        fields = []
        for name, value in msgspec.structs.asdict(self).items():
            if _is_shown(name, value):
                fields.append((name, without_secrets(name, value)))
        return fields

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"


class Plan(RedactedPlan, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a soak does. Times in seconds; ``None`` means that asyncli chooses, unless the field
    says otherwise.
    """

    urls: tuple[str, ...]
    connections: int = 1000
    keepalive_s: float = 60.0
    batch: int = 10
    interval_s: float = 0.010
    #: None: hold until stopped, or until ``hold_until``.
    hold_s: float | None = 60.0
    #: A time of day or a date, as of ``units.parse_until``: ``hold_s`` is computed when the hold
    #: begins.
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
    #: ``HOST:PORT``, or ``unix:/path``, to connect to instead of the URLs' hosts; requests are
    #: unchanged.
    connect_to: str | None = None
    #: ``HOST:PORT:ADDRESS[,ADDRESS]``, used instead of a name server.
    resolve: tuple[str, ...] = ()
    #: Each connection begins with a PROXY header of this version, with its own source.
    proxy_protocol: Literal["v1", "v2"] | None = None
    #: The name that TLS requests and verifies, instead of the URLs' hosts.
    sni: str | None = None
    status_url: str | None = None
    #: Sent with each request of the status page and the pages of metrics.
    status_headers: tuple[str, ...] = ()
    #: Pages of the server's own metrics, and which of these count what (metrics_map.py).
    server_metrics: tuple[str, ...] = ()
    metrics_map: tuple[str, ...] = ()
    #: How asyncli asks the server for collections of its heap: "auto" or a URL; None: not at all.
    collect: str | None = None
    server_pid: int | None = None
    server_pidfile: str | None = None
    server_name: str | None = None
    #: ``http://host:9165`` of the agent on the server's host, which samples the server for us.
    agent: str | None = None
    #: Files with its token, and with its certificate's authority.
    agent_token_file: str | None = None
    agent_ca: str | None = None
    method: str = "HEAD"
    headers: tuple[str, ...] = ()
    #: A file with a row for each connection, whose columns are template fields (data_file.py).
    data: str | None = None
    #: For http:// URLs: hold a response that does not end; None: send heartbeats.
    http_protocol: Literal["sse", "stream"] | None = None
    #: WebSocket: a heartbeat's text, which the server echoes; None: a ping.
    ws_message: str | None = None
    #: Offer to compress messages (permessage-deflate).
    ws_deflate: bool = False
    #: HTTP/2 to http:// (by prior knowledge) and https:// (by ALPN); its heartbeat, None: a ping.
    http2: bool = False
    h2_heartbeat: Literal["ping", "head"] | None = None
    #: HTTP/2: responses that each connection holds open, each on its own stream.
    streams: int = 0
    #: HTTP/2: later requests of a connection refer to the server's dynamic table.
    h2_table: bool = False
    #: Raw TCP (tcp_values.py): a heartbeat's bytes, None: nothing is sent; the expected answer; the
    #: server's expected greeting.
    send: str | None = None
    expect: str | None = None
    greeting: str | None = None
    #: Connections that listen: how long without data until one counts as lost. None: the protocol's
    #: default.
    silence_s: float | None = None
    #: MQTT: the version, None is 3.1.1; a template of client ids; ``user:password``; topics, each
    #: with its QoS.
    mqtt_version: str | None = None
    mqtt_id: str | None = None
    mqtt_login: str | None = None
    subscribe: tuple[str, ...] = ()
    first_beat: Literal["now", "sleep"] = "now"
    reopen: bool = True
    #: What is done in the hold, and how clients come back from it and from the server's own closes.
    #: None: with a backoff; from the server's own closes at most as fast as the ramp.
    #: As :mod:`asyncli.model.planned_events` reads them: "30s drop 30%", "jitter:10s".
    events: tuple[str, ...] = ()
    reconnect: str | None = None
    #: A share of the connections that is ended and replaced in each time of the hold: "1%/m".
    churn: str | None = None
    #: Limits on the run's numbers, as expressions; a crossed one fails the run
    #: (report/thresholds.py).
    fail_if: tuple[str, ...] = ()
    #: Run files, and folders of them, that limits on what is worse compare with.
    baseline_runs: tuple[str, ...] = ()
    #: End the run at the first crossed limit that can only get worse.
    abort: bool = False
    seed: int = 0
    force: bool = False

    @property
    def targets(self) -> tuple[values.Target, ...]:
        """The parsed URLs, in order, as connections use them."""
        targets = map(values.parse_target, self.urls)
        return tuple(aimed(target, self.connect_to, self.sni, self.resolve) for target in targets)

    @property
    def has_ports(self) -> bool:
        """Whether its connections are TCP: a Unix socket has no ports, packets or kernel
        counters.
        """
        return not (self.connect_to or "").startswith(UNIX)

    @property
    def names_server(self) -> bool:
        """Whether it names the server's process, which is else found by its listening socket."""
        return (self.server_pid, self.server_pidfile, self.server_name) != (None, None, None)

    @property
    def protocol(self) -> str:
        """The protocol of its connections, a key of PROTOCOLS."""
        if self.http_protocol is not None:
            return self.http_protocol
        if self.http2:
            return "http2"
        return values.parse_target(self.urls[0]).protocol

    @property
    def requests(self) -> Requests | None:
        """What an HTTP server counts as requests; None: unknown."""
        return requests_of(self.protocol, self.h2_heartbeat)

    @property
    def upgrades(self) -> bool:
        """Whether a connection sends at most one HTTP request: heartbeats are not requests, and
        HTTP timeouts do not apply.
        """
        return self.protocol not in ("http", "http2")

    @property
    def listens(self) -> bool:
        """Whether its connections send no heartbeats, and only receive."""
        return self.protocol in STREAMS or (self.protocol == "tcp" and self.send is None)

    @property
    def longest_silence_s(self) -> float:
        """How long a connection that listens may receive nothing."""
        if self.silence_s is not None:
            return self.silence_s
        if self.protocol in STREAMS:
            return _STREAM_SILENCE_S
        return LONGEST_S

    @property
    def heard_within_s(self) -> float:
        """The time within which each connection receives something or is lost."""
        if self.listens:
            return self.longest_silence_s
        return self.keepalive_s / 2 + self.timeout_s

    @property
    def patience_s(self) -> float:
        """How long an expected answer or message may be late until the connection counts as
        lost.
        """
        if self.listens:
            return self.longest_silence_s
        return self.timeout_s

    @property
    def tls(self) -> values.TlsOptions | None:
        """The TLS options of its connections; None: no TLS."""
        if not any(target.secure for target in self.targets):
            return None
        return self.tls_options

    @property
    def tls_options(self) -> values.TlsOptions:
        """The TLS options, whether TLS is used or not."""
        own = msgspec.structs.asdict(self)
        names = values.TlsOptions.__struct_fields__
        return values.TlsOptions(**{name: own[name] for name in names})

    @property
    def offered_alpn(self) -> tuple[str, ...]:
        """The protocols that its connections offer by ALPN; without one they send no such
        extension.
        """
        if self.alpn is not None:
            return tuple(self.alpn.split(","))
        if self.http2:
            # http/1.1 too, so that a server without h2 says what it speaks: some would abort the
            # handshake.
            return ("h2", "http/1.1")
        if PROTOCOLS[self.protocol].asks_by_http:
            return ("http/1.1",)
        return ()

    @property
    def planned_events(self) -> tuple[PlannedEvent, ...]:
        """The parsed events, in the order of their numbers."""
        return tuple(map(planned_event, self.events))

    def event_numbered(self, number: object) -> PlannedEvent | None:
        """The event with this number, from 1; that of churn is 0. None for another."""
        if number == CHURN and self.churn is not None:
            return PlannedEvent("churn", note=self.churn)
        if isinstance(number, int) and 0 < number <= len(self.events):
            return planned_event(self.events[number - 1])
        return None

    @property
    def has_stalls(self) -> bool:
        """Whether events have clients read nothing for a time."""
        return any(event.do == "stall" for event in self.planned_events)

    @property
    def most_open(self) -> int:
        """How many connections may be open at once: who vanishes and connects anew leaves the old
        one open.
        """
        again = 0.0
        for event in self.planned_events:
            if event.do == "vanish" and event.then == "reconnect":
                again += event.share
        return self.connections + math.ceil(again * self.connections)

    @property
    def policy(self) -> Reconnect | None:
        """How clients come back; None: with a backoff."""
        if self.reconnect is None:
            return None
        return reconnect_of(self.reconnect)

    @property
    def asked_per_s(self) -> float:
        """The ramp's rate in connections a second."""
        return self.batch / self.interval_s

    @property
    def lasts_s(self) -> float:
        """The planned duration without the drain; a hold without a known end counts as an hour."""
        hold_s = _AN_HOUR if self.hold_s is None else self.hold_s
        return self.baseline_s + self.schedule.end_s + hold_s + self.residue_s

    @property
    def schedule(self) -> Ramp:
        """When each batch of the ramp is due."""
        return Ramp(self.connections, self.batch, self.interval_s, self.plateaus, self.plateau_s)


#: Key in a plan file (and, with dashes, the flag) -> (field of Plan, parser).
KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "urls": ("urls", values.each_of(values.checked_target)),
    "connections": ("connections", values.parse_connections),
    "keepalive": ("keepalive_s", values.parse_keepalive),
    "batch": ("batch", parse_count),
    "interval": ("interval_s", values.parse_interval),
    "hold": ("hold_s", values.parse_hold),
    "baseline": ("baseline_s", parse_duration),
    "residue": ("residue_s", parse_duration),
    "plateaus": ("plateaus", values.whole_number(0, 100, "a number of plateaus")),
    "plateau_rest": ("plateau_s", values.parse_positive),
    "workers": ("workers", values.whole_number(1, 1000, "a number of processes")),
    "source": ("sources", values.each_of(values.parse_source)),
    "timeout": ("timeout_s", values.parse_positive),
    "connect_timeout": ("connect_timeout_s", values.parse_positive),
    "connect_to": ("connect_to", parse_place),
    "resolve": ("resolve", values.each_of(parse_resolve)),
    "sni": ("sni", values.parse_text),
    "proxy_protocol": (
        "proxy_protocol",
        values.one_of("v1", "v2", what="a version of the PROXY protocol"),
    ),
    "status_url": ("status_url", parse_status_url),
    "status_header": ("status_headers", values.each_of(values.parse_header)),
    "server_metrics": ("server_metrics", values.each_of(parse_metrics_url)),
    "metrics_map": ("metrics_map", values.each_of(parse_metrics_map)),
    "collect": ("collect", values.parse_collect),
    "server_pid": ("server_pid", values.whole_number(1, 2**22, "a process id")),
    "server_pidfile": ("server_pidfile", values.parse_file),
    "server_name": ("server_name", values.parse_text),
    "agent": ("agent", values.parse_agent),
    "agent_token_file": ("agent_token_file", values.parse_file),
    "agent_ca": ("agent_ca", values.parse_file),
    "method": ("method", values.one_of("HEAD", "GET", "OPTIONS", what="a method for a heartbeat")),
    "protocol": ("http_protocol", values.one_of(*STREAMS, what="a protocol over http://")),
    "header": ("headers", values.each_of(values.parse_header)),
    "data": ("data", values.parse_file),
    "ws_message": ("ws_message", values.parse_text),
    "ws_deflate": ("ws_deflate", values.parse_boolean),
    "http2": ("http2", values.parse_boolean),
    "h2_heartbeat": ("h2_heartbeat", values.one_of("ping", "head", what="a heartbeat of HTTP/2")),
    "h2_table": ("h2_table", values.parse_boolean),
    "streams": ("streams", values.whole_number(0, 10_000, "a number of streams")),
    "send": ("send", parse_sent),
    "expect": ("expect", checked_expected),
    "greeting": ("greeting", checked_expected),
    "silence": ("silence_s", values.parse_silence),
    "mqtt_version": ("mqtt_version", parse_version),
    "mqtt_id": ("mqtt_id", parse_client_id),
    "subscribe": ("subscribe", values.each_of(parse_subscription)),
    "first_beat": ("first_beat", values.one_of("now", "sleep", what="a first beat")),
    "reopen": ("reopen", values.parse_boolean),
    "events": ("events", parse_events),
    "reconnect": ("reconnect", parse_reconnect),
    "churn": ("churn", parse_churn),
    "ca": ("ca", values.parse_file),
    "client_cert": ("client_cert", values.parse_file),
    "client_key": ("client_key", values.parse_file),
    "insecure": ("insecure", values.parse_boolean),
    "tls_min": ("tls_min", values.parse_tls_version),
    "tls_max": ("tls_max", values.parse_tls_version),
    "tls_ciphers": ("tls_ciphers", values.parse_text),
    "alpn": ("alpn", values.parse_alpn),
    "tls_resume": ("tls_resume", values.parse_boolean),
    "fail_if": ("fail_if", values.each_of(values.parse_text)),
    "baseline_run": ("baseline_runs", values.each_of(values.parse_file)),
    "abort": ("abort", values.parse_boolean),
    "seed": ("seed", values.whole_number(0, 2**63 - 1, "a seed")),
    "force": ("force", values.parse_boolean),
}


#: A file of headers, added to "header"; it is read when the plan is made.
HEADER_FILE: dict[str, tuple[str, Callable[[object], Any]]] = {
    "header_file": ("headers", values.parse_header_file)
}
#: All files with secrets.
SECRET_FILES = HEADER_FILE | {"mqtt_login_file": ("mqtt_login", parse_login_file)}


class Layer(msgspec.Struct, frozen=True):
    """Raw values from one source. ``where``: a format for their names in errors: ``"--{key}"``,
    ``"a.toml: {key}"``, ``"$ASYNCLI_SOAK_{key}"``.
    """

    where: str
    values: dict[str, Any]

    def locate(self, key: str) -> str:
        """The name of ``key`` in errors: flags have dashes, URLs are arguments, and environment
        variables are in capitals.
        """
        if self.where.startswith("$") and key == "events":
            return self.where.format(key="AT")
        if self.where.startswith("$"):
            return self.where.format(key=key.upper())
        if not self.where.startswith("--"):
            return self.where.format(key=key)
        if key == "urls":
            return "URL"
        if key == "events":
            return "--at"
        return self.where.format(key=key.replace("_", "-"))


def _split_combined_keys(layer: Layer) -> Layer:
    """Replace ``ramp`` by batch and interval, and ``hold`` by hold or hold_until."""
    given = dict(layer.values)
    pace = given.pop("ramp", None)
    if pace is not None:
        try:
            batch, interval_s = parse_pace(pace)
        except ValueError as error:
            raise PlanError(f"{layer.locate('ramp')}: {error}") from None
        given_twice = [layer.locate(key) for key in ("batch", "interval") if key in given]
        if given_twice:
            raise PlanError(
                f"{layer.locate('ramp')} and {' and '.join(given_twice)}: "
                "both set the ramp's rate; leave one out"
            )
        given["batch"] = batch
        given["interval"] = interval_s
    if "hold" in given:
        clock_time = _clock_time_of(given["hold"])
        try:
            given["hold_until"] = values.parse_hold_until(clock_time)
        except ValueError as error:
            raise PlanError(f"{layer.locate('hold')}: {error}") from None
        if clock_time is not None:
            given["hold"] = None
    return Layer(layer.where, given)


def _clock_time_of(hold: object) -> str | None:
    """What follows "until" in a hold; None for a duration."""
    if not isinstance(hold, str):
        return None
    text = hold.strip()
    if not text.lower().startswith("until"):
        return None
    return text[len("until") :]


def read_layers(
    layers: Iterable[Layer], keys: Mapping[str, tuple[str, Callable[[object], Any]]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Parse the layers, weakest first, with ``keys`` (see KEYS): each field's value, and its
    source. Raises :class:`PlanError`.
    """
    fields: dict[str, Any] = {}
    located: dict[str, str] = {}
    for layer in layers:
        parsed: dict[str, Any] = {}
        for key, raw in layer.values.items():
            if key not in keys:
                where = layer.locate(key if key.isprintable() else shown(key))
                raise PlanError(f"{where}: unknown key; the keys are {', '.join(sorted(keys))}")
            field, parse = keys[key]
            try:
                value = parse(raw)
            except ValueError as error:
                raise PlanError(f"{layer.locate(key)}: {error}") from None
            # Headers from flags and from a file add up.
            if field in parsed:
                value = (*parsed[field], *value)
            parsed[field] = value
            located[field] = layer.locate(key)
        fields |= parsed
    try:
        values.with_one_host(fields.get("headers", ()))
    except ValueError as error:
        raise PlanError(f"{located['headers']}: {error}") from None
    if not fields.get("urls"):
        raise PlanError("no URL given; write one, for example http://127.0.0.1:8080/")
    require_consistent(fields, located)
    fields.setdefault("seed", secrets.randbits(48))
    return fields, located


def build_plan(layers: Iterable[Layer]) -> Plan:
    """Merge the layers, weakest first, into one plan. A missing seed is drawn; the run file keeps
    it.
    """
    known = KEYS | SECRET_FILES | {"hold_until": ("hold_until", values.parse_hold_until)}
    fields, located = read_layers(map(_split_combined_keys, layers), known)
    plan = Plan(**fields)
    if plan.batch > plan.connections:
        plan = msgspec.structs.replace(plan, batch=plan.connections)
    if plan.plateaus > plan.connections:
        raise PlanError(
            f"{located['plateaus']}: more plateaus ({plan.plateaus}) than connections "
            f"({plan.connections}); write at most {plan.connections}"
        )
    _require_room_for_events(plan, located.get("events", ""))
    return plan


def _require_room_for_events(plan: Plan, where: str) -> None:
    """Raise :class:`PlanError` if the hold has no room for an event, or two are at one instant."""
    words_at: dict[float, str] = {}
    gone = 0.0
    if plan.churn is not None and not plan.reopen:
        raise PlanError(
            "--churn: nothing comes back in a run with --no-reopen; leave one of them out"
        )
    for event in plan.planned_events:
        told = f"{where} {event.when} '{event.words}'"
        _require_possible(plan, event, told)
        if event.lasts_to_the_end:
            gone += event.share
        if event.at_share is not None and plan.hold_s is None:
            # When that is, is known when the hold begins.
            continue
        after_s = event.after_s(plan.hold_s)
        _require_within_hold(plan, event, after_s, told)
        if after_s in words_at:
            raise PlanError(
                f"{told}: '{words_at[after_s]}' is at the same instant; write another time"
            )
        words_at[after_s] = event.words
    if gone > 1:
        raise PlanError(
            f"{where}: {100 * gone:.4g} % of the connections are to vanish for good or to stall to "
            "the end, more than there are; write smaller shares"
        )


def _require_possible(plan: Plan, event: PlannedEvent, told: str) -> None:
    if event.is_of_connections and not plan.reopen:
        raise PlanError(
            f"{told}: nothing comes back in a run with --no-reopen; leave one of them out"
        )
    if event.do == "vanish" and not plan.has_ports:
        raise PlanError(
            f"{told}: a Unix socket cannot fall silent: nothing of it passes a network; leave that "
            "out"
        )
    has_end = plan.hold_s is not None or plan.hold_until is not None
    if event.at_share is not None and not has_end:
        raise PlanError(
            f"{told}: the hold has no planned end; write a time after its start, such as 30s, or "
            "--hold"
        )


def _require_within_hold(plan: Plan, event: PlannedEvent, after_s: float, told: str) -> None:
    if plan.hold_s is None:
        return
    hold = format_duration(plan.hold_s)
    if after_s >= plan.hold_s:
        raise PlanError(
            f"{told}: the hold ends after {hold}; write an earlier time or a longer --hold"
        )
    if after_s + (event.for_s or 0.0) >= plan.hold_s:
        raise PlanError(
            f"{told}: it is over after the hold, which lasts {hold}; write a shorter time or a "
            "longer --hold"
        )


def shown_plan(plan: RedactedPlan) -> dict[str, Any]:
    """The plan as plain data for display: without secrets and optional fields that are not set."""
    document = {}
    for field, value in msgspec.to_builtins(plan).items():
        if _is_shown(field, value):
            document[field] = without_secrets(field, value)
    return document


#: Fields that are shown only if they are set.
_OPTIONAL = frozenset(
    {
        *values.TlsOptions.__struct_fields__,
        *OWN_KEYS[1:],
        "connect_to",
        "resolve",
        "proxy_protocol",
        "sni",
        "data",
        "status_headers",
        "server_metrics",
        "metrics_map",
        "collect",
        "baseline_runs",
        "events",
        "reconnect",
        "churn",
    }
)


def _is_shown(field: str, value: object) -> bool:
    return bool(value) or field not in _OPTIONAL


def plan_document(plan: Plan) -> Mapping[str, Any]:
    """The whole plan as plain data; :func:`load_plan` reads it. A run file keeps it without its
    secrets (store/writer.py).
    """
    document: Mapping[str, Any] = msgspec.to_builtins(plan)
    return document


def load_plan(document: Mapping[str, Any]) -> Plan:
    """A plan from :func:`plan_document`. Raises :class:`PlanError` if it is invalid."""
    try:
        plan = msgspec.convert(document, Plan)
    except msgspec.ValidationError as error:
        raise PlanError(f"recorded plan: {str(error)[:200]}") from None
    recorded = msgspec.structs.asdict(plan)
    for field, parse in KEYS.values():
        value = recorded[field]
        try:
            if value is not None:
                parse(value)
        except ValueError as error:
            raise PlanError(f"recorded plan: {field}: {error}") from None
    return plan
