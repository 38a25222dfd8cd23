"""Mutated heads, framings and lines for the reader of server-sent events. Checks: any split has one outcome, also on a row that
reads the same as another; it is that of h11 and httpx-sse."""

from __future__ import annotations

import re
from random import Random
from typing import NamedTuple

import h11
from chance import maybe, mutated
from httpx_sse._decoders import SSEDecoder, SSELineDecoder
from of_http1 import pieces

from asyncli.model.template import Fields
from asyncli.protocols.http1 import MOST_HEAD_BYTES
from asyncli.protocols.interface import CLOSING, ESTABLISHED, ProtocolError
from asyncli.protocols.settings import StreamSettings
from asyncli.protocols.sse import Stream


class Case(NamedTuple):
    """``data`` as the answer, read in pieces at ``cuts``; without ``events`` its bytes are counted."""

    data: bytes
    cuts: tuple[int, ...] = ()
    events: bool = True


class Outcome(NamedTuple):
    """``error``: the stream ended in one; ``ended``: it came to its end."""

    granted: bool = False
    messages: int = 0
    body_bytes: int = 0
    last_id: bytes = b""
    wait_s: float = 0.0
    ended: bool = False
    error: bool = False


_STATUS = (b"HTTP/1.1 200 OK",) * 30 + (b"HTTP/1.0 200 OK", b"HTTP/1.1 204 No", b"HTTP/1.1 206 Part", b"HTTP/1.1 404 Not", b"HTTP/1.1 302 Found", b"HTTP/1.1 101 x", b"HTTP/1.1 100 Continue")
_TYPES = (b"text/event-stream",) * 8 + (b"text/event-stream; charset=utf-8", b"Text/Event-Stream ;x", b"text/html", b"text/event-streams", b"")
_LINES = (
    b"data: hello", b"data:hello", b"data:  two", b"data", b"data:", b"data: ", b"data:\xff\xe2\x82\xac", b"data: a:b", b"datum: x", b" data: x", b"DATA: x", b"dat", b"d",
    b"data: " + b"x" * 300, b":", b": ping", b"event: tick", b"event", b"retry: 1000", b"retry: x", b"retry:0070", b"retry: 9999999", b"retry:", b"retry: 1 ", b"retry:  1", b"retry: -1", b"retry", b"retry: " + b"1" * 20, b"retry: " + b"1" * 21, b"id: 1", b"id: 1", b"id:2", b"id", b"id:", b"id: a\0b", b"id:  x", b"ids: 7", b"id: " + b"9" * 300,
    b"\xef\xbb\xbfdata: x", b"\xef\xbb\xbf", b"\xef\xbb", b"x" * 300, b": ping data: x", b"retry:   id: 5", b"data: \x0b\x0c\x1c\x85",
)  # fmt: skip
_ENDS = (b"\n", b"\r\n", b"\r")


def generate(chance: Random) -> Case:
    """An answer with events, perhaps mutated, in pieces."""
    body = (b"\xef\xbb\xbf" if maybe(chance, 4) else b"") + b"".join(_event(chance) for _ in range(chance.randrange(5)))
    if maybe(chance, 4) and body:
        body = mutated(chance, body)
    if maybe(chance, 200):
        at = chance.randrange(len(body) + 1)
        body = body[:at] + chance.choice((b"x", b"id: ", b"\n", b"\r", b"data:\n")) * chance.choice((500, 5_000)) + body[at:]
    lines, framing = [chance.choice(_STATUS), b"Content-Type: " + chance.choice(_TYPES)], chance.randrange(6)
    if framing == 4:
        lines.append(b"Content-Length: %d" % max(0, len(body) + chance.choice((0, 0, 1, -1))))
    elif framing < 4:
        lines.append(b"Transfer-Encoding: chunked")
        body = _chunked(chance, body)
    lines += [b"Content-Encoding: " + chance.choice((b"gzip", b"identity"))] if maybe(chance, 20) else []
    data = (b"HTTP/1.1 103 Early\r\n\r\n" if maybe(chance, 20) else b"") + b"\r\n".join(lines) + b"\r\n\r\n" + body
    if maybe(chance, 8):
        data = mutated(chance, data)
    cuts = tuple(chance.randrange(len(data) + 1) for _ in range(chance.randrange(6)))
    return Case(data, tuple(range(1, len(data))) if maybe(chance, 20) else cuts, not maybe(chance, 6))


def _event(chance: Random) -> bytes:
    end = chance.choice(_ENDS)
    lines = [chance.choice(_LINES) for _ in range(chance.randrange(4))]
    return b"".join(line + (chance.choice(_ENDS) if maybe(chance, 12) else end) for line in [*lines, *([] if maybe(chance, 8) else [b""])])


def _chunked(chance: Random, body: bytes) -> bytes:
    parts = pieces(body, tuple(chance.randrange(len(body) + 1) for _ in range(chance.randrange(5))))
    made = b"".join(b"%x%b\r\n%b\r\n" % (len(part), chance.choice((b"", b"", b"", b";x=y")), part) for part in parts)
    return made + (b"" if maybe(chance, 2) else b"0\r\n" + (b"T: 1\r\n" if maybe(chance, 4) else b"") + b"\r\n")


def check(case: Case) -> str:
    """The kind of the outcome. Raises AssertionError if a check fails."""
    words = StreamSettings((b"GET / HTTP/1.1\r\n",), case.events, 60.0)
    protocol, parts = Stream(words, Fields()), pieces(case.data, case.cuts)
    # The third row reads what the second has just read, and the first connects again.
    heard = [*read(protocol, (0,), [case.data]), *read(protocol, (1, 2), parts), *read(protocol, (0,), [case.data])]
    expected = oracle(case)
    if expected.error and not expected.granted and set(heard) == {Outcome()}:
        # h11 checks only whole heads.
        return "not granted yet"
    shown = f"in pieces {heard[1:]}, whole {heard[0]}, h11 and httpx-sse say {expected}"
    assert {one.error for one in (*heard, expected)} == {expected.error}, shown
    if expected.error:
        # Events before the error, in the same read, do not count.
        return "refused"
    assert set(heard) == {expected}, shown
    return "accepted" if expected.granted else "not granted yet"


def read(protocol: Stream, rows: tuple[int, ...], parts: list[bytes]) -> list[Outcome]:
    """The outcome of our reader, by row; the rows read each part in turn."""
    outcome = dict.fromkeys(rows, Outcome())
    for row in rows:
        protocol.handshake(row, 0)
    for part in parts:
        for row in rows:
            if not (outcome[row].ended or outcome[row].error):
                outcome[row] = fed(protocol, row, outcome[row], part)
    return [one if one.error else one._replace(last_id=last_id(protocol, row), wait_s=protocol.reopen_delay_s(row)) for row, one in outcome.items()]


def fed(protocol: Stream, row: int, outcome: Outcome, part: bytes) -> Outcome:
    """The outcome after one more part."""
    try:
        event = protocol.feed(row, part, False)
    except ProtocolError as error:
        assert len(str(error)) < 300
        assert len(str(error).splitlines()) == 1
        assert row not in protocol.partial
        return Outcome(error=True)
    if event is None:
        return outcome
    if event.kind == ESTABLISHED:
        assert not outcome.granted
        return fed(protocol, row, outcome._replace(granted=True), event.rest) if event.rest else outcome._replace(granted=True)
    return outcome._replace(messages=outcome.messages + event.messages, body_bytes=outcome.body_bytes + event.body_bytes, ended=event.kind == CLOSING)


def last_id(protocol: Stream, row: int) -> bytes:
    """The id in the row's next request, after its connection has ended."""
    assert protocol.feed(row, b"", False) is None
    protocol.forget(row)
    again = protocol.handshake(row, 0)
    protocol.forget(row)
    assert row not in protocol.partial
    return again.partition(b"Last-Event-ID: ")[2].removesuffix(b"\r\n\r\n")


def oracle(case: Case) -> Outcome:
    """The outcome of h11 and httpx-sse."""
    conn = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD_BYTES)
    conn.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    conn.send(h11.EndOfMessage())
    outcome, body = Outcome(), b""
    try:
        conn.receive_data(case.data)
        while (event := conn.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
            if isinstance(event, h11.Response):
                if not _grants(event, case.events):
                    return outcome._replace(error=True)
                outcome = outcome._replace(granted=True)
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                outcome = outcome._replace(ended=True)
                break
    except h11.RemoteProtocolError as error:
        # They mean nothing in a trailer (of_http1.py).
        if not (outcome.granted and ("Transfer-Encoding" in str(error) or "Content-Length" in str(error))):
            return outcome._replace(error=True)
        outcome = outcome._replace(ended=True)
    if not case.events:
        return outcome._replace(body_bytes=len(body))
    text, lines, decoder = body.removeprefix(b"\xef\xbb\xbf").decode("latin-1"), SSELineDecoder(), SSEDecoder()
    whole = lines.decode(text + "\n" * text.endswith("\r"))
    if any(line.startswith("id:") and len(line[3:].removeprefix(" ")) > 4096 for line in (*whole, "".join(lines.buffer))):
        return outcome._replace(error=True)
    for line in whole:
        if not line:
            outcome = outcome._replace(last_id=decoder._last_event_id.encode("latin-1"))
            if decoder._data:
                outcome = outcome._replace(messages=outcome.messages + 1, body_bytes=outcome.body_bytes + len("\n".join(decoder._data)))
        decoder._retry = None
        decoder.decode(line)
        # httpx-sse accepts any text that int() does.
        if decoder._retry is not None and re.fullmatch("retry: ?[0-9]+", line) and len(line) <= 27:
            outcome = outcome._replace(wait_s=min(decoder._retry, 3_600_000) / 1e3)
    return outcome


def _grants(head: h11.Response, events: bool) -> bool:
    fields = {name: b",".join(value for other, value in head.headers if other == name) for name, _ in head.headers}
    if head.status_code in (204, 205) or (fields.get(b"content-length", b"").strip(b"0") == b"" and b"content-length" in fields and b"transfer-encoding" not in fields):
        return False
    if not events:
        return 200 <= head.status_code < 300
    kind = fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return head.status_code == 200 and kind == b"text/event-stream" and fields.get(b"content-encoding", b"").lower() in (b"", b"identity")
