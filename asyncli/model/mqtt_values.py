"""Parsers of a plan's MQTT values: client ids, topics, a login. Each raises ``ValueError`` with
what to write.
"""

from __future__ import annotations

import re

from asyncli.model.template import Template
from asyncli.model.units import shown
from asyncli.model.values import MOST_CONNECTIONS, parse_file, parse_text, read_text

#: 21 of the 23 characters that every broker must accept.
CLIENT_ID = "asyncli-{random}-{n:06d}"
# MQTT 3.1.1, section 3.2.2.3, and MQTT 5, section 2.4: their codes do not conflict.
_FROM_128 = (
    "unspecified error",
    "malformed packet",
    "protocol error",
    "implementation specific error",
    "unsupported protocol version",
    "client identifier not valid",
    "bad user name or password",
    "not authorized",
    "server unavailable",
    "server busy",
    "banned",
    "server shutting down",
    "bad authentication method",
    "keep alive timeout",
    "session taken over",
    "topic filter invalid",
    "topic name invalid",
    "packet identifier in use",
    "packet identifier not found",
    "receive maximum exceeded",
    "topic alias invalid",
    "packet too large",
    "message rate too high",
    "quota exceeded",
    "administrative action",
    "payload format invalid",
    "retain not supported",
    "QoS not supported",
    "use another server",
    "server moved",
    "shared subscriptions not supported",
    "connection rate exceeded",
    "maximum connect time",
    "subscription identifiers not supported",
    "wildcard subscriptions not supported",
)
#: Reason code -> why a server refuses or disconnects.
REASONS = dict(enumerate(_FROM_128, 128)) | {
    1: "unacceptable protocol version",
    2: "identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}
_QOS = re.compile(r"(.*)@([0-9]+)", re.DOTALL)
# MQTT gives a text's length in two bytes.
_LONGEST_TEXT = 60_000
_LOGIN = "name a file with one line, user:password"


def parse_version(value: object) -> str:
    """Parse a version of MQTT; TOML and Python may give a number."""
    text = str(value) if type(value) in (int, float) else value
    if text not in ("3.1.1", "5", "5.0"):
        raise ValueError(f"{shown(value)} is not a version of MQTT; write 3.1.1 or 5")
    return str(text)[:5].removesuffix(".0")


def parse_client_id(value: object) -> str:
    """Check a template that gives each connection its own id."""
    text = _short(value)
    if not Template(text).varies:
        raise ValueError(
            f"{shown(text)} is the same for all connections, but a broker requires unique ids; "
            "write {n} in it"
        )
    return text


def parse_subscription(value: str) -> str:
    """Check a topic filter, which may be a template, and its QoS: ``TOPIC[@QOS]``."""
    topic, qos = topic_and_qos(_short(value))
    Template(topic)
    if qos > 2 or not topic:
        raise ValueError(f"{shown(value)} is not a topic and a QoS; write for example sensors/#@1")
    if not _has_valid_wildcards(topic):
        raise ValueError(
            f"{shown(value)}: a wildcard must be a whole level, # the last one; "
            "write for example sensors/+/state"
        )
    return value


def _has_valid_wildcards(topic: str) -> bool:
    levels = topic.split("/")
    if any("#" in level for level in levels[:-1]):
        return False
    return not any(len(level) > 1 and {*level} & {*"#+"} for level in levels)


def topic_and_qos(text: str) -> tuple[str, int]:
    """Split ``TOPIC[@QOS]``; the default QoS is 0."""
    match = _QOS.fullmatch(text)
    if match is None:
        return text, 0
    return match[1], int(match[2])


def parse_login_file(value: object) -> str:
    """``user:password`` or ``user`` from a file of one line. No error shows it."""
    path = parse_file(value)
    lines = read_text(path, _LOGIN).splitlines()
    if len(lines) != 1 or not is_login(lines[0]):
        raise ValueError(f"{shown(path)} has no login in it; {_LOGIN}")
    return lines[0]


def is_login(text: str) -> bool:
    """Whether CONNECT can have ``user:password`` or ``user``."""
    user, _, _ = text.partition(":")
    return bool(user) and "\0" not in text and len(text.encode()) <= _LONGEST_TEXT


def _short(value: object) -> str:
    text = parse_text(value)
    if not text.isprintable():
        raise ValueError(f"{shown(text)} has control characters; write it without them")
    longest = text
    if "{" in text:
        template = Template(text)
        columns = dict.fromkeys(template.names, "")
        longest = template.fill({**columns, "n": MOST_CONNECTIONS, "random": "f" * 6})
    if len(longest.encode()) > _LONGEST_TEXT:
        raise ValueError(
            f"{shown(text)} is longer than {_LONGEST_TEXT:,} bytes; write a shorter one"
        )
    return text
