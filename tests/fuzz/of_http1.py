"""Mutated answers for the scanner, by the grammar of HTTP/1.x. Checks: any split has one outcome, which is h11's; copies add up."""

from __future__ import annotations

import itertools
from random import Random
from typing import NamedTuple

import h11
from chance import ODD_BYTES, maybe, mutated, several

from asyncli.protocols.http1 import MOST_HEAD_BYTES, Scanner
from asyncli.protocols.interface import Event, ProtocolError
from asyncli.protocols.replies import Malformed, Replies, State


class Case(NamedTuple):
    """``data`` as the answer to ``method``, read in pieces at ``cuts``; ``copies``: its number in a row, one to each request."""

    method: str
    data: bytes
    cuts: tuple[int, ...] = ()
    copies: int = 1


_STATUS = (
    b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 204", b"HTTP/1.1 404 ", b"HTTP/1.1 304 a\tb", b"HTTP/1.1 100 Continue",
    b"HTTP/1.1 103 Early", b"HTTP/1.1 101 Switching", b"HTTP/1.1 199", b"HTTP/2.0 200 OK", b"HTTP/1.1  200 OK", b"HTTP/1.1 2000", b"http/1.1 200 OK", b"",
    b"HTTP/1.1 007 x", b"HTTP/1.9 599 x", b"HTTP/0.9 200 OK", b"HTTP/1.1 999 \xff", b"HTTP/1.1 200\t", b"SSH-2.0-x", b"\x16\x03\x01",
)  # fmt: skip
_NAMES = (
    b"Connection", b"connection", b"Content-Length", b"content-length", b"Transfer-Encoding", b"Date", b"X-y", b"A b", b"", b"Proxy-Connection", b"Trailer",
)  # fmt: skip
_VALUES = (
    b"close", b"keep-alive", b"Close, x", b"chunked", b"chunked", b"5", b"5", b"5, 5", b"0", b"6", b"05", b"+5", b"5_0", b"-1", b"0x5", b"5 5", b"5,", b",5", b"9" * 20, b"9" * 21,
    b"gzip", b"identity", b"Chunked", b"chunked, chunked", b"gzip, chunked", b"chunked;q=1", b"\x0bchunked", b"a\tb", b"\x01", b"\x00", b" ", b" \t5 \t", b"close\t ,", b" chunked ",
    b"a  \x00 ", b"\xb2", b"close;x", b'"close"', b"keep-alive,,close", b"\x0cclose", b"\x0b5",
)  # fmt: skip
_LINES = (b" folded", b"\tfolded", b" close", b"\t5", b"nonsense", b"X:", b":", b" ", b"\r", b"X: \r y")
_BODIES = (
    b"", b"", b"hello", b"hello", b"hello world", b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"5;e\r\nhello\r\n0\r\nT: 1\r\n\r\n", b"0\r\n\r\n", b"5 \r\nhello\r\n", b"g\r\n",
    b"5 \t; x \t\r\nhello\r\n0;\r\n\r\n", b"5; \n \r\nhello\r\n0\r\n\r\n", b"5;\t\r \r\nhello\r\n0\t \r\nT: \t1 \r\n\r\n", b"1\r\nh\r\n" * 5 + b"0\r\n\r\n", b"05\r\nhello\r\n00\r\n\n",
    b"5\nhello\n0\n\n", b"5\r\nhello0\r\n\r\n", b"-5\r\nhello\r\n0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", b"f" * 16 + b"\r\nhello", b"f" * 21 + b"\r\nhello", b"0\r\nA: b\n\n",
    b"0\r\n x\r\n\r\n", b"0\r\nA: b\r\n c\r\n\r\n", b"0\r\n: x\r\n\r\n",
)  # fmt: skip
_ENDS = (b"\r\n", b"\r\n", b"\r\n", b"\n")
# A few bytes repeated many times: this shows what is not linear.
_PIECES = (
    b" ", b"\t ", b"\r", b"\n", b"\r\n", b"\n ", b"\r\n\t", b"a", b",", b"5,", b"close,", b"1\r\nx\r\n", b"1;", b"f", b"0", b"X: y\r\n", b"X: y\n z\n", b":", b"\0",
    b"HTTP/1.1 100\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 ", b"Content-Length: 5\r\n", b"\r\n\r",
)  # fmt: skip


def generate(chance: Random) -> Case:
    """One or two answers, perhaps mutated, in pieces."""
    data = b"".join(_message(chance) for _ in range(1 + maybe(chance, 3)))
    if maybe(chance, 3):
        data = mutated(chance, data)
    if maybe(chance, 500):
        at = chance.randrange(len(data) + 1)
        piece = chance.choice(_PIECES)
        data = data[:at] + piece * (chance.choice((100, 4_000, 70_000)) // len(piece)) + data[at:]
    cuts = tuple(chance.randrange(len(data) + 1) for _ in range(chance.randrange(5)))
    if len(data) > 4_000:
        cuts = (*cuts, *range(chance.randrange(1, 9_000), len(data), chance.choice((1_000, 1_448, 20_000))))
    elif maybe(chance, 8):
        cuts = tuple(range(1, len(data)))
    return Case("HEAD" if maybe(chance, 4) else "GET", data, cuts, 3 if maybe(chance, 6) else 1)


def _message(chance: Random) -> bytes:
    end = chance.choice(_ENDS)
    lines = [chance.choice(_STATUS) if maybe(chance, 3) else _STATUS[0]]
    if maybe(chance, 3):
        lines.append(b"Transfer-Encoding: chunked")
    elif maybe(chance, 2):
        lines.append(b"Content-Length: 5")
    for _ in range(chance.randrange(3)):
        if maybe(chance, 6):
            lines.append(chance.choice(_LINES))
        else:
            value = b"".join(several(chance, 3, ODD_BYTES)) if maybe(chance, 6) else chance.choice(_VALUES)
            lines.append(chance.choice(_NAMES) + b": "[: 1 + chance.randrange(2)] + value)
    return end.join(lines) + end + end + chance.choice(_BODIES)


def check(case: Case) -> str:
    """The kind of the outcome. Raises AssertionError if a check fails."""
    whole = scanned(case.method, [case.data])
    parts = pieces(case.data, case.cuts)
    assert scanned(case.method, parts) == whole, f"in pieces {scanned(case.method, parts)}, whole {whole}"
    if len(case.data) < 4_000:
        expected = oracle(case.method, case.data)
        assert expected in (whole[0], None), f"h11 says {expected}, we {whole[0]}"
    if case.copies > 1:
        data = case.data * case.copies
        one_by_one = train(case.method, data)
        counted = replied(case.method, pieces(data, case.cuts))
        assert counted == one_by_one, f"a train is counted {counted}, one by one {one_by_one}"
    found = whole[0]
    if isinstance(found, Event):
        return "accepted" if whole[1] is not None else "accepted at the stream's end"
    return found


def pieces(data: bytes, cuts: tuple[int, ...]) -> list[bytes]:
    """``data`` in pieces, none of them empty."""
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


def scanned(method: str, parts: list[bytes]) -> tuple[Event | str, int | None]:
    """The scanner's outcome, and the number of bytes that it used (None: up to the stream's end)."""
    scanner, fed = Scanner(method), 0
    try:
        for part in parts:
            fed += len(part)
            response = scanner.feed(part)
            if response is not None:
                return response, fed - len(scanner.rest)
    except ProtocolError as error:
        assert len(str(error).splitlines()) == 1
        assert len(str(error)) < 500
        return "refused", None
    return scanner.end() or "cut", None


def oracle(method: str, data: bytes) -> Event | str | None:
    """h11's outcome; None: it checks something that we do not.

    h11 checks Content-Length and Transfer-Encoding in a trailer too. There they mean nothing: a recipient may ignore the fields, and
    must not use them for framing (RFC 9110, section 6.5.1).
    """
    conn = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD_BYTES)
    conn.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    conn.send(h11.EndOfMessage())
    status, alive, size, version = 0, False, 0, b""
    ended = False
    try:
        if data:
            conn.receive_data(data)
        while True:
            event = conn.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                if ended or event is h11.PAUSED:
                    return "cut"
                ended = True
                if not status:
                    return "cut"
                conn.receive_data(b"")
            elif isinstance(event, h11.Response):
                tokens = {t.strip().lower() for k, v in event.headers if k == b"connection" for t in v.split(b",")}
                # h11 never keeps HTTP/1.0 alive; browsers, ab and we do if the server allows it.
                status = event.status_code
                version = b"" if event.http_version >= b"1.1" or tokens & {b"close", b"keep-alive"} else b"HTTP/1.0"
                alive = not version and b"close" not in tokens
            elif isinstance(event, h11.Data):
                size += len(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return Event(status, alive and not ended, size, rest=version)
    except h11.RemoteProtocolError as error:
        if status and ("Transfer-Encoding" in str(error) or "Content-Length" in str(error)):
            return None
        # After the end of the stream the error is a cut body.
        return "cut" if ended else "refused"


_Answers = tuple[list[Event], str]


def train(method: str, data: bytes) -> _Answers:
    """Answers in a row, read by a scanner each, and how the stream ended."""
    found: list[Event] = []
    while data:
        scanner = Scanner(method)
        try:
            response = scanner.feed(data)
        except ProtocolError:
            return found, "refused"
        if response is None:
            last = scanner.end()
            return (found, "cut") if last is None else ([*found, last], "closed")
        found.append(response)
        if not response.keep_alive:
            return found, "closed"
        data = scanner.rest
    return found, "open"


def replied(method: str, parts: list[bytes]) -> _Answers:
    """The same, read by protocols/replies.py."""
    replies, found = Replies(lambda: Scanner(method), 65_536), []
    state: State = None
    for part in parts:
        runs, state, over = replies.take(state, part)
        found += [response for response, count in runs for _ in range(count)]
        if isinstance(state, Malformed):
            return found, "refused"
        if over:
            return found, "closed"
    if state is None:
        return found, "open"
    last = replies.end(state)
    return (found, "cut") if last is None else ([*found, last], "closed")
