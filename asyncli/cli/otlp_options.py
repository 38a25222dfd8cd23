"""``--otlp``: where a soak's metrics are sent by OpenTelemetry. Its library reads the variables of
OpenTelemetry itself; what would make it send nothing, or to another place, is refused before the
run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import click

from asyncli.model.errors import PlanError
from asyncli.model.installed import missing

if TYPE_CHECKING:
    from asyncli.live.serve import SentTo

_Command = TypeVar("_Command", bound=Callable[..., Any])
# --otlp without a URL.
_BY_VARIABLES = "by the variables"
_DEFAULT = "http://localhost:4318"
_PATH = "/v1/metrics"
_NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
#: Often enough for a chart of a minute's soak; a change of this by OTEL_METRIC_EXPORT_INTERVAL.
_EVERY_S = 10.0
# The values change once a second.
_LEAST_MS = 1000
# What OpenTelemetry's library takes of a header; others it drops without a word.
_NAME = re.compile(r"[!#-'*+\-.0-9A-Z^-z|~]+")
_VALUE = re.compile(r"[ !#-+\--:<-\[\]-~]*")
# What HTTP can have in a header.
_SENDABLE = re.compile(r"[\t -~\xa0-\xff]*")
# Parsers of URLs take some of these away, and others not.
_NEVER_IN_A_URL = re.compile(r"[\s\x00-\x1f\x7f]")


def otlp_option(command: _Command) -> _Command:
    """--otlp, of a soak."""
    option = click.option(
        "--otlp",
        metavar="[URL]",
        is_flag=False,
        flag_value=_BY_VARIABLES,
        help="Send the run's numbers to an OpenTelemetry collector, by OTLP over HTTP.  "
        f"[URL: $OTEL_EXPORTER_OTLP_ENDPOINT, or {_DEFAULT}]",
    )
    return option(command)


def otlp_place(given: str | None) -> SentTo | None:
    """Where to send; None without --otlp.

    Raises :class:`~asyncli.model.errors.PlanError` for what is no URL, for a variable that asks for
    what asyncli does not send, and where OpenTelemetry is not installed.
    """
    if given is None:
        return None
    if any(_is_missing(module) for module in _NEEDED):
        raise PlanError(
            "--otlp: OpenTelemetry is not installed; add it: pip install 'asyncli[otel]'"
        )
    endpoint = _endpoint_of_variables() if given == _BY_VARIABLES else _endpoint(given, "--otlp")
    _require_headers()
    _require_cumulative()
    from asyncli.live.serve import SentTo

    return SentTo(endpoint, _interval_s())


def otlp_line(to: SentTo) -> str:
    """What is said of a run whose metrics are sent; a URL may have a secret."""
    parts = urlsplit(to.endpoint)
    place = parts.netloc.rpartition("@")[2]
    return f"metrics are sent to {place} every {to.every_s:g} s"


def _is_missing(module: str) -> bool:
    try:
        return bool(missing((module,)))
    except ModuleNotFoundError:
        # Of the package that it would be in.
        return True


def _endpoint_of_variables() -> str:
    _require_protocol()
    whole = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
    if whole:
        _require_url(whole, "$OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
        return whole
    base = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return _endpoint(base or _DEFAULT, "$OTEL_EXPORTER_OTLP_ENDPOINT")


def _endpoint(base: str, where: str) -> str:
    """The URL that metrics are sent to, of the URL of a collector."""
    _require_url(base, where)
    if "?" in base or "#" in base:
        raise PlanError(
            f"{where}: the collector's URL has no '?' and no '#'; a token belongs into "
            "OTEL_EXPORTER_OTLP_HEADERS"
        )
    if base.endswith(_PATH):
        return base
    return f"{base.rstrip('/')}{_PATH}"


def _require_url(text: str, where: str) -> None:
    """The text is not shown: it may have a password."""
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or _NEVER_IN_A_URL.search(text):
        raise PlanError(f"{where}: it is not the URL of a collector; write http://HOST:4318")


def _first_set(*names: str) -> tuple[str, str]:
    """The first of these variables that has a value, and the value."""
    for name in names:
        value = os.environ.get(name, "").strip()
        if value:
            return name, value
    return names[0], ""


def _require_protocol() -> None:
    name, protocol = _first_set(
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    if protocol not in ("", "http/protobuf"):
        raise PlanError(
            f"${name}: asyncli sends OTLP as http/protobuf alone; name the collector's address "
            "for that: --otlp http://HOST:4318"
        )


def _require_headers() -> None:
    """The values are not shown: they are secrets."""
    name, headers = _first_set("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
    for number, header in enumerate(headers.split(","), 1):
        if header.strip():
            _require_header(f"${name}: ", number, header.strip())


def _require_header(where: str, number: int, header: str) -> None:
    key, sign, value = header.partition("=")
    if not sign or not _NAME.fullmatch(key.strip(" \t")):
        raise PlanError(
            f"{where}header {number} is not NAME=VALUE; write authorization=Bearer%20TOKEN, with "
            "commas between headers"
        )
    value = value.strip(" \t")
    # The library decodes what has no blank.
    sent = value if " " in value else unquote(value)
    if not _SENDABLE.fullmatch(sent):
        raise PlanError(
            f"{where}the value of header {number} has a character that no HTTP header can have; "
            "write authorization=Bearer%20TOKEN"
        )
    if not _VALUE.fullmatch(value):
        raise PlanError(
            f"{where}the value of header {number} has a character that must be written as %XX, "
            "such as %22 for a quotation mark and %5C for a backslash"
        )


def _require_cumulative() -> None:
    name, preference = _first_set("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE")
    if preference.lower() not in ("", "cumulative"):
        raise PlanError(
            f"${name}: asyncli sends cumulative values alone; leave it out (a collector's "
            "processor cumulativetodelta makes the others)"
        )


def _interval_s() -> float:
    name, interval_ms = _first_set("OTEL_METRIC_EXPORT_INTERVAL")
    if not interval_ms:
        return _EVERY_S
    if not interval_ms.isdecimal() or int(interval_ms) < _LEAST_MS:
        raise PlanError(f"${name}: write milliseconds, at least {_LEAST_MS}, such as 10000")
    return int(interval_ms) / 1000
