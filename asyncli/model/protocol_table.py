"""The protocols: their URL schemes, and the plan fields and headers that belong to each."""

from __future__ import annotations

from typing import Literal

import msgspec

Requests = Literal["heartbeats", "connections", "none"]


class ProtocolTraits(msgspec.Struct, frozen=True):
    """``title``: in reports. ``schemes``: in the clear and over TLS, with their usual ``ports``
    (None: none). ``keys``: fields of a plan that only this protocol has. ``asks_by_http``: its
    requests have HTTP headers. ``requests``: what an HTTP server counts as requests; None: unknown.
    ``flag``: the flag that selects it, where its schemes belong to another protocol. ``reserved``:
    headers that a plan may not set, because asyncli sets them or the protocol forbids them.
    """

    title: str
    schemes: tuple[str, str]
    ports: tuple[int, int] | None
    keys: tuple[str, ...]
    asks_by_http: bool = False
    requests: Requests | None = None
    flag: str = ""
    reserved: frozenset[str] = frozenset()


_WEB = ("http", "https"), (80, 443)
#: By the name of the protocol. To add one: a row here, then protocols/settings.py.
PROTOCOLS = {
    "http": ProtocolTraits("HTTP", *_WEB, ("method", "http_protocol", "http2"), True, "heartbeats"),
    "http2": ProtocolTraits(
        "HTTP/2",
        *_WEB,
        ("http2", "h2_heartbeat", "h2_table", "streams"),
        True,
        "heartbeats",
        "--http2",
        frozenset(
            {"proxy-connection", "keep-alive", "upgrade", "te", "http2-settings"}
        ),  # RFC 9113, section 8.2.2
    ),
    "sse": ProtocolTraits(
        "Server-sent events",
        *_WEB,
        ("http_protocol", "silence_s"),
        True,
        "connections",
        "--protocol sse",
        frozenset({"last-event-id"}),
    ),
    "stream": ProtocolTraits(
        "HTTP stream",
        *_WEB,
        ("http_protocol", "silence_s"),
        True,
        "connections",
        "--protocol stream",
    ),
    "websocket": ProtocolTraits(
        "WebSocket",
        ("ws", "wss"),
        (80, 443),
        ("ws_message", "ws_deflate"),
        True,
        "connections",
        reserved=frozenset(
            {"upgrade", "sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions"}
        ),
    ),
    "tcp": ProtocolTraits("TCP", ("tcp", "tls"), None, ("send", "expect", "greeting", "silence_s")),
    "mqtt": ProtocolTraits(
        "MQTT",
        ("mqtt", "mqtts"),
        (1883, 8883),
        ("mqtt_version", "mqtt_id", "mqtt_login", "subscribe"),
    ),
}
#: What a plan's ``protocol`` has http:// URLs speak.
STREAMS = ("sse", "stream")
#: What is spoken to URLs of each scheme where the plan says nothing else, and whether over TLS.
SCHEMES: dict[str, tuple[str, bool]] = {}
for _name, _protocol in PROTOCOLS.items():
    if not _protocol.flag:
        _clear, _secure = _protocol.schemes
        SCHEMES[_clear] = (_name, False)
        SCHEMES[_secure] = (_name, True)
#: What a server was found to speak in place of HTTP/1.1.
SPEAKS_HTTP2 = "it speaks HTTP/2"
SPEAKS_TLS = "it speaks TLS"
#: How a server breaks a protocol that has no echo, so that nothing but the order shows that it read
#: a heartbeat.
UNASKED = "the heartbeat's answer, though no heartbeat was unanswered"
#: How a server breaks HTTP that answers a HEAD with the body of a GET (RFC 9110, section 9.3.2),
#: of HTTP/1.1 and of HTTP/2.
BODY_OF_HEAD = "a body in the answer to a HEAD"
DATA_OF_HEAD = "data in the answer to a HEAD"
#: How a reason begins where what came in place of an answer is not HTTP at all.
NOT_HTTP = "not a status line: "
#: How a reason begins where a server sent more than asyncli reads, which no specification forbids.
UNREAD = "more than asyncli reads: "
#: How a reason begins where a server reset the stream of a heartbeat, with a code that follows (RFC
#: 9113, section 5.4.2).
STREAM_RESET = "RST_STREAM "
#: In place of the reasons beyond those that are counted one by one.
OTHER_REASONS = "other reasons"
#: How a server breaks HTTP that answers one request twice.
SECOND_ANSWER = "a second answer to one request"
#: How an answer is cut.
CUT_ANSWER = "closed in the middle of its answer"
#: How a server of events refuses a stream for good.
NO_MORE_EVENTS = "HTTP 204: no more events, so clients must not reconnect"
#: How a refusal begins where a server grants an extension of WebSocket that was not offered, or not
#: so.
NOT_OFFERED = "an extension that was not offered"
#: Fields of a plan that some protocols alone have.
OWN_KEYS = tuple(dict.fromkeys(key for protocol in PROTOCOLS.values() for key in protocol.keys))


def streams_needed(held: int, heads: bool) -> int:
    """How many streams at once the server must allow on a connection of HTTP/2: those that are
    held and one for a HEAD, and in any case one, because without it no request is served.
    """
    return max(1, held + heads)


def requests_of(protocol: str, h2_heartbeat: str | None) -> Requests | None:
    """What a server of HTTP counts as requests; None: unknown."""
    if protocol == "http2" and h2_heartbeat != "head":
        return "none"
    return PROTOCOLS[protocol].requests
