"""HTTP/1.x: requests as heartbeats, and a scanner of responses without I/O.

Nearly all answers are equal bytes, so the engine compares with the last one first and calls this
only for new ones. The scanner takes any split of bytes, 1xx responses, any status, a missing
reason, bare LF, HTTP/1.0, and every framing of a body (RFC 9112, section 6.3). It accepts no empty
line between two responses: only a server may ignore one before a request (section 2.2). Tested
against h11.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from asyncli.model.protocol_table import (
    BODY_OF_HEAD,
    NOT_HTTP,
    SECOND_ANSWER,
    SPEAKS_HTTP2,
    SPEAKS_TLS,
    UNREAD,
)
from asyncli.model.records import EVENTS, ProtocolCounts
from asyncli.model.template import Fields, Filled, same_for_all
from asyncli.model.text import MOST_SHOWN, quoted
from asyncli.protocols.interface import CLOSING, Event, Protocol, ProtocolError

# 64 KiB is four times what nginx, Apache and HAProxy send as a head; more is an attack or not HTTP.
MOST_HEAD_BYTES = 65_536
_MOST_LENGTH_DIGITS = 20

# No pattern matches the same blanks in two ways: a peer may send 64 KiB of them, and the regex
# would try every way.
BLANK_LINE = re.compile(rb"\n\r?\n")
_LINE_END = re.compile(rb"\r\n")
_STATUS_LINE = re.compile(rb"HTTP/([0-9])\.([0-9]) ([0-9]{3})(?: ([^\x00\r\n\f\v]*))?")
_HEADER = re.compile(rb"([-!#$%&'*+.^_`|~0-9A-Za-z]+):([^\x00\r\n\f\v]*)")
_HTTP = b"HTTP/"
# The first frame of an HTTP/2 server, after its length (RFC 9113, section 3.4).
_SETTINGS = b"\x04\0\0\0\0\0"
# A TLS alert or handshake record (RFC 8446, section 5.1).
_TLS = re.compile(rb"[\x15\x16]\x03[\x00-\x04]")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,20})(?:;[^\n]*|[ \t]*)\r\n")


class Head(msgspec.Struct, frozen=True):
    """A response's status and framing: chunked, of a ``length``, or to the stream's end;
    ``ends_by``: a version that closes.
    """

    status: int
    keep_alive: bool
    chunked: bool
    length: int | None
    ends_by: bytes = b""


def fields_of(head: bytes) -> tuple[re.Match[bytes], dict[bytes, list[bytes]]]:
    """The status line (two digits of the version, status, reason) and the header fields by
    lower-case name, of a head with its blank line. Raises :class:`ProtocolError`.
    """
    first, _, rest = head.partition(b"\n")
    first = first.removesuffix(b"\r")
    line = _STATUS_LINE.fullmatch(first)
    if line is None:
        raise ProtocolError(f"{NOT_HTTP}{quoted(first)}")
    if int(line[3]) < 100:
        raise ProtocolError(f"not a status: {int(line[3])}")
    fields: dict[bytes, list[bytes]] = {}
    for field in _fields(rest):
        header = _HEADER.fullmatch(field)
        if header is None:
            raise ProtocolError(f"not a header: {quoted(field)}")
        fields.setdefault(header[1].lower(), []).append(header[2].strip(b" \t"))
    return line, fields


def head_of(line: re.Match[bytes], fields: dict[bytes, list[bytes]]) -> Head:
    """The :class:`Head` for the result of :func:`fields_of`. Raises :class:`ProtocolError`."""
    tokens = {
        token.strip()
        for value in fields.get(b"connection", [])
        for token in value.lower().split(b",")
    }
    lengths = {
        length.strip()
        for value in fields.get(b"content-length", [])
        for length in value.split(b",")
    }
    codings = [value.lower() for value in fields.get(b"transfer-encoding", [])]
    if codings and codings != [b"chunked"]:
        raise ProtocolError(f"unknown Transfer-Encoding: {quoted(b', '.join(codings))}")
    # By default HTTP/1.0 closes and HTTP/1.1 stays open (RFC 9112, section 9.3).
    old = (line[1], line[2]) < (b"1", b"1") and not tokens & {b"close", b"keep-alive"}
    return Head(
        int(line[3]),
        not old and b"close" not in tokens,
        bool(codings),
        _length(lengths),
        b"HTTP/1.0" if old else b"",
    )


def _length(values: set[bytes]) -> int | None:
    """The Content-Length; None without one."""
    if not values:
        return None
    length = next(iter(values))
    if len(values) > 1 or not length.isdigit() or len(length) > _MOST_LENGTH_DIGITS:
        raise ProtocolError(f"no single Content-Length: {quoted(b', '.join(sorted(values)))}")
    return int(length)


def _fields(text: bytes) -> list[bytes]:
    """The header lines of a head, unfolded: a value may continue on the next line, after blanks
    (RFC 9112, section 5.2).
    """
    lines = [line.removesuffix(b"\r") for line in text.split(b"\n")[:-2]]
    if not text.startswith((b" ", b"\t")) and b"\n " not in text and b"\n\t" not in text:
        return lines
    fields: list[list[bytes]] = []
    for line in lines:
        if line[:1] not in (b" ", b"\t"):
            fields.append([line])
        elif fields:
            fields[-1].append(line.lstrip(b" \t"))
        else:
            raise ProtocolError("a continuation line before any header")
    return [b" ".join(parts) for parts in fields]


class Scanner:
    """Reads one response. ``feed`` until it returns an :class:`Event`; then ``rest`` has the bytes
    after it.

    For any split of the bytes each is copied and searched a bounded number of times, and the result
    is the same.
    """

    # Bytes before _at are used; before _looked, the element at _at does not end.
    _at = _looked = 0
    _left = _body_bytes = 0
    _head: Head | None = None
    #: Whether the response is an endless one, of server-sent events.
    streams = False

    def __init__(self, method: str) -> None:
        self._bodiless = method == "HEAD"
        # A bytearray, which grows and shrinks in place, only if a read ends in the middle of a head
        # or of a chunk header.
        self._buffer: bytes | bytearray = b""
        self._body: _Step = _whole

    @property
    def rest(self) -> bytes:
        """Unused bytes; after the response, those that follow it."""
        return bytes(self._buffer[self._at :])

    def feed(self, data: bytes) -> Event | None:
        """Take more bytes; None while the response is incomplete. Raises :class:`ProtocolError`."""
        if self._at == len(self._buffer):
            self._buffer, self._at, self._looked = data, 0, 0
        else:
            self._append(data)
        while self._head is None:
            head = self._take_head()
            if head is None:
                return None
            if head.status == 101:
                raise ProtocolError("101 Switching Protocols, though no upgrade was requested")
            if head.status >= 200:
                self.begin_body(head)
        while self._body is not _whole:
            following = self._body(self)
            if following is None:
                return None
            self._body = following
        return Event(
            self._head.status, self._head.keep_alive, self._body_bytes, rest=self._head.ends_by
        )

    @property
    def announces_unsent_body(self) -> bool:
        """The response is to a HEAD, and says what body a GET would get."""
        head = self._head
        return self._bodiless and head is not None and (head.chunked or bool(head.length))

    @property
    def at_rest(self) -> bool:
        """Between two chunks, or in a body that lasts to the stream's end: reading can continue
        from the head alone.
        """
        return self._at == len(self._buffer) and self._body in (_chunk_head, _until_close)

    def end(self) -> Event | None:
        """The stream has ended: the response if its body lasts to the end, else None (it
        was cut).
        """
        if self._head is not None and self._body is _until_close:
            return Event(self._head.status, False, self._body_bytes, rest=self._head.ends_by)
        return None

    def _append(self, data: bytes) -> None:
        if not isinstance(self._buffer, bytearray):
            self._buffer = bytearray(self._buffer)
        del self._buffer[: self._at]
        self._looked -= self._at
        self._at = 0
        self._buffer += data

    def _take_head(self) -> Head | None:
        buffer, at = self._buffer, self._at
        if at < len(buffer) and buffer[at] < 0x21:
            if buffer[at + 3 : at + 9] == _SETTINGS:
                raise ProtocolError(SPEAKS_HTTP2)
            if _TLS.match(buffer, at):
                raise ProtocolError(SPEAKS_TLS)
            raise ProtocolError(f"{NOT_HTTP}{quoted(bytes(buffer[at : at + MOST_SHOWN + 1]))}")
        end = self._find(BLANK_LINE, "head")
        if end < 0:
            return None
        self._at = end
        line, fields = fields_of(bytes(buffer[at:end]))
        self.streams = fields.get(b"content-type", [b""])[0].lower().startswith(EVENTS.encode())
        return head_of(line, fields)

    def begin_body(self, head: Head) -> None:
        """Read the body that ``head`` announces next."""
        self._head = head
        if self._bodiless or head.status in (204, 304):
            self._body = _whole
        elif head.chunked:
            self._body = _chunk_head
        elif head.length is not None:
            self._body, self._left = _counted, head.length
        else:
            self._body = _until_close

    def _find(self, what: re.Pattern[bytes], name: str) -> int:
        """The end of ``what``, which ends the element at _at; -1: it has not come yet. The bound
        holds for any split of bytes.
        """
        match = what.search(self._buffer, self._at if self._at > self._looked else self._looked)
        if match is None:
            if len(self._buffer) - self._at >= MOST_HEAD_BYTES:
                raise ProtocolError(f"{UNREAD}a {name} of over {MOST_HEAD_BYTES:,} bytes")
            # The last two bytes may begin a match, which has at most three.
            self._looked = len(self._buffer) - 2
            return -1
        end = match.end()
        if end - self._at > MOST_HEAD_BYTES:
            raise ProtocolError(f"{UNREAD}a {name} of over {MOST_HEAD_BYTES:,} bytes")
        return end

    def _take_body(self, most: int) -> int:
        available = len(self._buffer) - self._at
        taken = available if available < most else most
        self._at += taken
        self._body_bytes += taken
        return taken


# A body is read in steps. A step consumes what it can of the buffer and returns the next step;
# None: it needs more bytes.
_Step = Callable[[Scanner], "_Step | None"]


def _whole(_: Scanner) -> _Step | None:
    raise AssertionError("a whole response takes no more bytes")


def _until_close(scanner: Scanner) -> _Step | None:
    scanner._take_body(len(scanner._buffer))
    return None


def _counted(scanner: Scanner) -> _Step | None:
    scanner._left -= scanner._take_body(scanner._left)
    return None if scanner._left else _whole


def _chunk_head(scanner: Scanner) -> _Step | None:
    at = scanner._at
    end = scanner._find(_LINE_END, "chunk header")
    if end < 0:
        return None
    match = _CHUNK.fullmatch(scanner._buffer, at, end)
    if match is None:
        raise ProtocolError(f"not a chunk header: {quoted(bytes(scanner._buffer[at : end - 2]))}")
    scanner._at = end
    scanner._left = int(match[1], 16)
    return _chunk_data if scanner._left else _trailer


def _chunk_data(scanner: Scanner) -> _Step | None:
    scanner._left -= scanner._take_body(scanner._left)
    return None if scanner._left else _chunk_end


def _chunk_end(scanner: Scanner) -> _Step | None:
    if scanner._buffer.startswith(b"\r\n", scanner._at):
        scanner._at += 2
        return _chunk_head
    footer = bytes(scanner._buffer[scanner._at : scanner._at + 2])
    if footer not in (b"", b"\r"):
        raise ProtocolError(f"a chunk is followed by {footer!r}, not by a line end")
    return None


def _trailer(scanner: Scanner) -> _Step | None:
    at = scanner._at
    for blank in (b"\r\n", b"\n"):
        if scanner._buffer.startswith(blank, at):
            scanner._at += len(blank)
            return _whole
    end = scanner._find(BLANK_LINE, "trailer")
    if end < 0:
        return None
    for field in _fields(bytes(scanner._buffer[at:end])):
        if not _HEADER.fullmatch(field):
            raise ProtocolError(f"not a trailer: {quoted(field)}")
    scanner._at = end
    return _whole


class Http1(Protocol):
    """Heartbeats by ``method``; ``requests``: one for each URL of the plan."""

    def __init__(self, method: str, requests: Sequence[bytes], fields: Fields) -> None:
        self._method, self._requests = method, [Filled(request, fields) for request in requests]
        self.heartbeat = same_for_all(self._requests)
        self.partial: dict[int, Scanner] = {}
        self._streams = False
        # An answer to a HEAD has announced a body, which a wrong server then sends.
        self._announced = False

    def heartbeat_for(self, row: int, target: int) -> bytes:
        return self._requests[target](row)

    def feed(self, row: int, data: bytes, awaiting: int) -> Event | None:
        if not awaiting:
            if self._announced and data and not data.startswith(_HTTP):
                raise ProtocolError(BODY_OF_HEAD)
            return _farewell(data) if data else None
        if not data:
            # What the end cuts off stays partial, until the row is forgotten.
            return self.partial[row].end() if row in self.partial else None
        scanner = self.partial.pop(row, None) or Scanner(self._method)
        event = scanner.feed(data)
        self._streams |= scanner.streams
        self._announced |= scanner.announces_unsent_body
        if event is None:
            self.partial[row] = scanner
        elif scanner.rest:
            return self._with_further(row, event, scanner.rest, awaiting)
        return event

    def _with_further(self, row: int, first: Event, rest: bytes, awaiting: int) -> Event:
        """The meaning of several answers in one read, of which so many are awaited. ``rest``: the
        bytes after the ``first``. Raises :class:`ProtocolError` for bytes that nothing asked for.
        """
        event = msgspec.structs.replace(first, own=True)
        while rest and event.keep_alive and event.answers < awaiting:
            scanner = Scanner(self._method)
            try:
                following = scanner.feed(rest)
            except ProtocolError as error:
                error.answer = event
                raise
            if following is None:
                self.partial[row] = scanner
                return event
            event = msgspec.structs.replace(
                following,
                body_bytes=event.body_bytes + following.body_bytes,
                own=True,
                answers=event.answers + 1,
            )
            rest = scanner.rest
        if rest:
            excess = ProtocolError(self._excess(rest))
            excess.answer = event
            raise excess
        return event

    def _excess(self, rest: bytes) -> str:
        """How bytes after a whole answer break the protocol."""
        if rest.startswith(_HTTP):
            return SECOND_ANSWER
        return BODY_OF_HEAD if self._announced else "bytes after the response"

    def add_counts(self, counts: ProtocolCounts) -> None:
        if self._streams:
            counts.first_answers[EVENTS] = 1
            self._streams = False


def _farewell(data: bytes) -> Event:
    """A response on an idle connection must close it, as a 408 with Connection: close does; also
    one without a length, as Node's, which lasts until the connection ends (RFC 9112, section 6.3).
    """
    scanner = Scanner("GET")
    event = scanner.feed(data) or scanner.end()
    if event is None or event.keep_alive:
        raise ProtocolError("a response without a request")
    return Event(event.status, False, event.body_bytes, CLOSING)
