"""Codes and messages of protocols by which a server refuses, closes or breaks the protocol, and the
remedies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from asyncli.findings import Words
from asyncli.model.mqtt_values import REASONS
from asyncli.model.protocol_table import (
    BODY_OF_HEAD,
    CUT_ANSWER,
    DATA_OF_HEAD,
    NOT_HTTP,
    NOT_OFFERED,
    PROTOCOLS,
    SECOND_ANSWER,
    SPEAKS_HTTP2,
    SPEAKS_TLS,
    STREAM_RESET,
    STREAMS,
    UNREAD,
)
from asyncli.model.units import format_count

# Close codes (RFC 6455, section 7.4.1, and its registry): name and remedy.
_CLOSE_CODES = {
    1000: ("normal closure", "see why it closed them"),
    1001: ("going away", "see what stopped or restarted it, or what it deleted"),
    1002: ("protocol error", "see its error log: it did not understand a frame of asyncli's"),
    1003: ("unsupported data", "see which messages it accepts (--ws-message)"),
    1007: ("invalid payload", "see its error log"),
    1008: ("policy violation", "see its rules: tokens, origins, rates, idle times"),
    1009: ("message too big", "see its limit of a message's size"),
    1010: (
        "mandatory extension",
        "see which extensions it wants (--ws-deflate offers permessage-deflate)",
    ),
    1011: ("internal error", "see its error log"),
    1012: ("service restart", "see what restarted it"),
    1013: ("try again later", "see its load and its limits"),
    1014: ("bad gateway", "see the proxy's backend"),
    3000: ("unauthorized", "see the credentials that it requires (--header-file)"),
    3003: (
        "forbidden",
        "see what the login may do, and the Origin that it requires (--header-file)",
    ),
    3008: ("timeout", "see its timeouts, and use a shorter --keepalive"),
}
# Error codes of HTTP/2 (RFC 9113, section 7), of GOAWAY and RST_STREAM.
_ERROR_CODES = {
    0: ("no error", "see what stopped or reloaded it, and its timeouts"),
    1: ("protocol error", "see its error log: it did not understand a frame of asyncli's"),
    2: ("internal error", "see its error log"),
    3: ("flow control error", "see its error log: it found more data from asyncli than it allows"),
    4: ("settings timeout", "see its load, and middle boxes that hold packets back"),
    5: (
        "stream closed",
        "see its error log: a frame of asyncli's came on a stream that it had ended",
    ),
    6: ("frame size error", "see its error log: it did not understand a frame of asyncli's"),
    7: (
        "refused stream",
        "see its limit on streams (nginx: http2_max_concurrent_streams), and its load: it did not "
        "process these requests, so clients may send them again",
    ),
    8: ("cancel", "see its error log"),
    9: ("compression error", "see its error log: it did not understand a HEAD of asyncli's"),
    10: ("connect error", "see its error log, and middle boxes between: asyncli sends no CONNECT"),
    11: ("enhance your calm", "see its limit of pings and requests, and use a longer --keepalive"),
    12: (
        "inadequate security",
        "see its TLS cipher suites (RFC 9113, appendix A), or --tls-min 1.3",
    ),
    13: ("HTTP/1.1 required", "leave --http2 out"),
}
# Reason codes with which an MQTT server disconnects (MQTT 5, section 3.14.2.1); of others "see its
# log".
_DISCONNECTS = {
    129: "see its log: it did not understand a packet of asyncli's",
    130: "see its log: it did not accept a packet of asyncli's",
    135: "see what the login may do (--mqtt-login-file)",
    137: "see its load and its limits",
    138: "see its list of banned clients",
    139: "see what stopped or restarted it",
    141: "see its load, and middle boxes that hold packets back; or use a shorter --keepalive",
    142: "use other ids (--mqtt-id): another client connected with the same",
    147: "see its limit of unacknowledged messages",
    149: "see its limit of a packet's size",
    150: "see its limit of messages, and use a longer --keepalive",
    151: "see its quotas",
    152: "see what its operator did",
    156: "use the server that its log or its configuration names",
    157: "use the server that its log or its configuration names",
    159: "open connections more slowly (--ramp), or raise its limit",
    160: "raise that limit, or hold for less",
}
#: By protocol: how a server closes a connection, and its codes.
_GOODBYES: dict[str, tuple[str, dict[int, tuple[str, str]]]] = {
    "websocket": ("with a close frame", _CLOSE_CODES),
    "mqtt": (
        "with a DISCONNECT",
        {code: (name, _DISCONNECTS.get(code, "see its log")) for code, name in REASONS.items()},
    ),
    "http2": ("with GOAWAY", _ERROR_CODES),
    "sse": ("which ended the stream", {}),
    "stream": ("which ended the answer", {}),
}
# Refusals and ends of streams begin with a word and usually a code. Remedies by word and code; the
# last is for all other codes.
_STATED = re.compile(r"(\w+)(?: ([0-9]+))?")
_BROKER = "see its log, its load and its limits"
_OF_BROKER = (
    ((1, 132), "use another --mqtt-version"),
    # MQTT 3.1.1 has no code for a Keep Alive that is too long: mosquitto with max_keepalive answers
    # 2 (mosquitto.conf(5)).
    (
        (2,),
        "use a shorter --keepalive (-k) if the broker limits it (mosquitto: max_keepalive), or "
        "other ids (--mqtt-id)",
    ),
    ((133,), "use other ids (--mqtt-id)"),
    ((4, 5, 134, 135, 140), "see the login and its rights (--mqtt-login-file)"),
    *(((code,), _DISCONNECTS[code]) for code in (138, 139, 142, 156, 157, 159)),
    ((), _BROKER),
)
_REFUSED: dict[str, tuple[tuple[Iterable[int], str], ...]] = {
    "HTTP": (
        ((204,), "see why the server has no more events for them; they were not opened again"),
        (range(300, 400), "use the URL that it redirects to"),
        (
            (400,),
            "use https:// or wss:// if it speaks TLS, and a --client-cert it trusts if it asks "
            "for one; else see --header",
        ),
        ((401, 403, 407), "see the credentials and the Origin that it requires (--header-file)"),
        (
            (429, *range(500, 600)),
            "see its log, its load and its limits, and the backend behind it",
        ),
        ((), "see the URL's path, and the headers that it requires (--header)"),
    ),
    "CONNACK": _OF_BROKER,
    "DISCONNECT": _OF_BROKER,
    "SERVER_KEEP_ALIVE": (((), "use a --keepalive of no more than that"),),
    "SUBACK": (((), "see the topics (--subscribe), and what the login may read"),),
    "GOAWAY": tuple(((code,), remedy) for code, (_, remedy) in _ERROR_CODES.items()),
    "MAX_CONCURRENT_STREAMS": (
        (
            (),
            "raise that limit (nginx: http2_max_concurrent_streams), or use fewer: --streams; "
            "--h2-heartbeat ping needs none",
        ),
    ),
    # Ends of held streams.
    "END_STREAM": (((), "use a URL whose answer has a body, or does not end"),),
    "RST_STREAM": (
        # nginx resets a stream that timed out with 1, one with an error with 2; 0 and 8 say
        # nothing.
        *(
            ((code,), remedy)
            for code, (_, remedy) in _ERROR_CODES.items()
            if code not in (0, 1, 2, 8)
        ),
        (
            (),
            "see its timeouts of clients that read nothing (nginx: send_timeout), and its error "
            "log",
        ),
    ),
    "status": (((), "use a path that it answers with 200"),),
}
# Remedies of answers without a code, and of no answer: by protocol.
_WITHOUT_CODE = {
    "http": "see that the URL names an HTTP server",
    "http2": (
        "see whether it speaks HTTP/2 here without an upgrade; leave --http2 out, or use https://"
    ),
    **dict.fromkeys(STREAMS, "see that the URL names an HTTP server, and its path"),
    "websocket": (
        "see whether a WebSocket server answers at this URL, and whether a middle box changes its "
        "answer"
    ),
    "tcp": "see whether such a server listens there, and what it sends first (--greeting)",
}
# Remedies of the ways to break a protocol.
_SPOKEN = {
    SPEAKS_HTTP2: "use --http2",
    SPEAKS_TLS: "use https://",
    BODY_OF_HEAD: (
        "use --method GET; or mend the server, which must send no body in answer to a HEAD (RFC "
        "9110, section 9.3.2)"
    ),
    DATA_OF_HEAD: (
        "use --h2-heartbeat ping; or mend the server, which must send no body in answer to a HEAD"
    ),
    SECOND_ANSWER: (
        "see its error log, and middle boxes between: an answer of another request, or one that "
        "was sent twice"
    ),
    CUT_ANSWER: (
        "see its error log, and a middle box between: the answer ends before the length that it "
        "announces"
    ),
}
# Those that no specification forbids.
_TOO_LONG = "see why the server sends so much"
_RESET_HEARTBEAT = "see its error log of these requests; --h2-heartbeat ping needs no streams"
_SENT = "see whether --send and --expect are right; else see its error log"
_BROKEN = {"tcp": _SENT}


def remedy_of_first_answers(served: int) -> str:
    """The remedy where connections got another answer to their first heartbeat than ``served``
    others, which went on: the answer may say that the server is full.
    """
    return (
        f"see whether this answer says that the server is full, with {format_count(served)} "
        f"connections that are answered rightly; else {_SENT}"
    )


def remedy_of_refusals(protocol: str, reasons: Iterable[str] = ()) -> str:
    """The remedy of refused handshakes: by the answers, such as ``HTTP 404 Not Found``; without
    any, no answer came.
    """
    remedies = dict.fromkeys(_remedy_of_refusal(protocol, why) for why in reasons)
    return "; ".join(remedies) or _without_code(protocol)


def _remedy_of_refusal(protocol: str, why: str) -> str:
    if why.startswith(NOT_OFFERED):
        return (
            "use --ws-deflate if it requires permessage-deflate, else leave it out; and see its "
            "settings of extensions"
        )
    stated = _STATED.match(why)
    if stated is not None:
        word, code = stated.groups()
        for codes, remedy in _REFUSED.get(word, ()):
            if not codes or (code and int(code) in codes):
                return remedy
    return _without_code(protocol)


def _without_code(protocol: str) -> str:
    return _WITHOUT_CODE.get(
        protocol, f"see whether a server there speaks {PROTOCOLS[protocol].title}, and its log"
    )


def remedy_of_broken(protocol: str, reasons: Mapping[str, int] | None = None) -> str:
    """The remedy where a server broke the protocol: by the most frequent of ``reasons``."""
    reason = max(reasons, key=reasons.__getitem__) if reasons else ""
    kind = kind_of_break(protocol, reason)
    if kind == "stream_reset":
        return _remedy_of_reset(_code_of_reset(reason))
    if kind == "answer_unread":
        return _TOO_LONG
    if reason in _SPOKEN:
        return _SPOKEN[reason]
    if kind == "not_http":
        return _WITHOUT_CODE["http"]
    return _BROKEN.get(protocol, "see its error log, and middle boxes that change what passes")


def _remedy_of_reset(code: int | None) -> str:
    if code not in _ERROR_CODES or code in (0, 8):
        return _RESET_HEARTBEAT
    _, remedy = _ERROR_CODES[code]
    return remedy


#: How what a server sent in place of an answer begins -> the diagnosis.
_KINDS = {
    **dict.fromkeys((NOT_HTTP, SPEAKS_HTTP2, SPEAKS_TLS), "not_http"),
    STREAM_RESET: "stream_reset",
    UNREAD: "answer_unread",
}


def kind_of_break(protocol: str, why: str) -> str:
    """The diagnosis of a connection that ended because of what the server sent in place of an
    answer; ``why`` "": unknown.
    """
    if not why:
        return "not_http" if protocol == "http" else "broken_protocol"
    for beginning, kind in _KINDS.items():
        if why.startswith(beginning):
            return kind
    return "broken_protocol"


def name_of_reset(why: str) -> str:
    """``RST_STREAM 7`` with the name of its code; other reasons unchanged."""
    code = _code_of_reset(why)
    if code is None:
        return why
    return why.replace(str(code), code_of_goodbye("http2", code), 1)


def _code_of_reset(why: str) -> int | None:
    """The code of ``RST_STREAM 7``, a reason that may go on."""
    stated = _STATED.match(why)
    if stated is None:
        return None
    word, code = stated.groups()
    if word != STREAM_RESET.strip() or not code:
        return None
    return int(code)


def announced(protocol: str) -> str:
    """How a server of this protocol announces that it ends a connection: ``with GOAWAY``."""
    if protocol == "http":
        return "with 'Connection: close'"
    how, _ = _GOODBYES.get(protocol, ("with notice", {}))
    return how


def code_of_goodbye(protocol: str, code: int) -> str:
    """``1001 (going away)``; "" if 0 means no code."""
    _, codes = _GOODBYES.get(protocol, ("", {}))
    if code in codes:
        name, _ = codes[code]
        return f"{code} ({name})"
    return str(code) if code else ""


def words_of_goodbye(protocol: str, code: int, own: str = "") -> Words:
    """``with a close frame of code 1001 (going away)``, and the remedy; ``own``: the server's
    reason.
    """
    how, codes = _GOODBYES.get(protocol, ("with notice", {}))
    shown = code_of_goodbye(protocol, code)
    if not shown:
        return Words(how, "see why it closed them")
    _, remedy = codes.get(code, ("", "see its documentation for the meaning of the code"))
    if own:
        return Words(f"{how} of code {shown}: {own}", remedy)
    return Words(f"{how} of code {shown}", remedy)
