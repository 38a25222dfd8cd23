"""HTTP/1.x responses, scanned without input or output: bytes in, responses out.

Answers are nearly all the same bytes, so the engine compares with the last one first and comes here only for what is new
(table.py for heartbeats, core/replies.py for pipelines). The scanner takes any split of bytes, 1xx responses, any status,
a missing reason, bare LF, HTTP/1.0, and every framing of a body (RFC 9112, section 6.3). Between two responses it skips nothing:
an empty line there belongs to no answer, and only a server may ignore one before a request (section 2.2). h11 agrees.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

# 64 KiB is four times what nginx, Apache and HAProxy allow themselves for a head; more is an attack or no HTTP.
MOST_HEAD_BYTES = 65_536
_MOST_LENGTH_DIGITS = 20

# No pattern can match the same blanks in two ways: a peer may send 64 KiB of them, and each way would be tried.
_BLANK_LINE = re.compile(rb"\n\r?\n")
_STATUS_LINE = re.compile(rb"HTTP/([0-9])\.([0-9]) ([0-9]{3})(?: [^\x00\r\n\f\v]*)?")
_HEADER = re.compile(rb"([-!#$%&'*+.^_`|~0-9A-Za-z]+):([^\x00\r\n\f\v]*)")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,20})(?:;[^\n]*|[ \t]*)\r\n")


class ProtocolError(Exception):
    """The peer sent what is not an HTTP response; ``str()`` says what."""


class Response(msgspec.Struct, frozen=True):
    """A whole response: its status, whether the connection stays open for another request, and the bytes of its body
    (without the framing of chunks).
    """

    status: int
    keep_alive: bool
    body_bytes: int = 0


class _Head(msgspec.Struct, frozen=True):
    status: int
    keep_alive: bool
    chunked: bool
    length: int | None


def _parse_head(text: bytes) -> _Head:
    lines = [line.removesuffix(b"\r") for line in text.split(b"\n")[:-2]]
    match = _STATUS_LINE.fullmatch(lines[0])
    if match is None:
        raise ProtocolError(f"not a status line: {lines[0][:80]!r}")
    modern = (match[1], match[2]) >= (b"1", b"1")
    status = int(match[3])
    if status < 100:
        raise ProtocolError(f"not a status: {status}")
    fields: list[bytes] = []
    for line in lines[1:]:
        if line[:1] in (b" ", b"\t"):  # obs-fold: a value that goes on
            if not fields:
                raise ProtocolError("a continuation line before any header")
            fields[-1] += b" " + line.lstrip(b" \t")
        else:
            fields.append(line)
    tokens: set[bytes] = set()
    lengths: set[bytes] = set()
    codings: list[bytes] = []
    for field in fields:
        header = _HEADER.fullmatch(field)
        if header is None:
            raise ProtocolError(f"not a header: {field[:80]!r}")
        name, value = header[1].lower(), header[2]
        if name == b"connection":
            tokens.update(token.strip() for token in value.lower().split(b","))
        elif name == b"content-length":
            lengths.update(length.strip() for length in value.split(b","))
        elif name == b"transfer-encoding":
            codings.append(value.strip(b" \t").lower())
    if len(lengths) > 1 or any(not one.isdigit() or len(one) > _MOST_LENGTH_DIGITS for one in lengths):
        raise ProtocolError(f"no single Content-Length: {b', '.join(sorted(lengths))[:80]!r}")
    if codings not in ([], [b"chunked"]):
        raise ProtocolError(f"unknown Transfer-Encoding: {b', '.join(codings)[:80]!r}")
    # HTTP/1.0 closes unless it says otherwise; HTTP/1.1 stays open unless it says otherwise.
    keep_alive = b"close" not in tokens and (modern or b"keep-alive" in tokens)
    return _Head(status, keep_alive, bool(codings), int(lengths.pop()) if lengths else None)


class Scanner:
    """One response to one request. ``feed`` until it gives a :class:`Response`; then ``rest`` holds what came after it."""

    def __init__(self, method: str) -> None:
        self._bodiless = method == "HEAD"
        self._buffer = b""
        self._head: _Head | None = None
        self._body: _Step = _whole
        self._left = 0
        self._body_bytes = 0

    @property
    def rest(self) -> bytes:
        """Bytes not used yet; after the response, those that follow it."""
        return self._buffer

    def feed(self, data: bytes) -> Response | None:
        """Take more bytes; None while the response is not whole. Raises :class:`ProtocolError`."""
        self._buffer += data
        while self._head is None:
            head = self._take_head()
            if head is None:
                return None
            if head.status == 101:
                raise ProtocolError("101 Switching Protocols, though no upgrade was asked for")
            if head.status >= 200:
                self._head = head
                self._choose_body(head)
        while self._body is not _whole:
            following = self._body(self)
            if following is None:
                return None
            self._body = following
        return Response(self._head.status, self._head.keep_alive, self._body_bytes)

    def end(self) -> Response | None:
        """The stream has ended: the response if its body was to end so, else None (it was cut)."""
        if self._head is not None and self._body is _until_close:
            return Response(self._head.status, False, self._body_bytes)
        return None

    def _take_head(self) -> _Head | None:
        buffer = self._buffer
        if buffer and buffer[0] < 0x21:
            raise ProtocolError(f"not a status line: {buffer[:80]!r}")
        match = _BLANK_LINE.search(buffer)
        if match is None:
            self._find(b"\n\n", "head")
            return None
        self._buffer = buffer[match.end() :]
        return _parse_head(buffer[: match.end()])

    def _choose_body(self, head: _Head) -> None:
        if self._bodiless or head.status in (204, 304):
            self._body = _whole
        elif head.chunked:
            self._body = _chunk_head
        elif head.length is not None:
            self._body, self._left = _counted, head.length
        else:
            self._body = _until_close

    def _find(self, what: bytes, name: str) -> int:
        at = self._buffer.find(what)
        if at < 0 and len(self._buffer) > MOST_HEAD_BYTES:
            raise ProtocolError(f"a {name} of more than {MOST_HEAD_BYTES} bytes")
        return at

    def _drop(self, count: int) -> int:
        dropped = min(count, len(self._buffer))
        self._buffer = self._buffer[dropped:]
        return dropped

    def _take_body(self, count: int) -> int:
        taken = self._drop(count)
        self._body_bytes += taken
        return taken


# A body is read in steps. A step takes what it can from the scanner's buffer and gives the step that follows, or None when
# it needs more bytes.
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
    end = scanner._find(b"\r\n", "chunk header")
    if end < 0:
        return None
    match = _CHUNK.fullmatch(scanner._buffer[: end + 2])
    if match is None:
        raise ProtocolError(f"not a chunk header: {scanner._buffer[: min(end, 80)]!r}")
    scanner._drop(end + 2)
    scanner._left = int(match[1], 16)
    return _chunk_data if scanner._left else _trailer


def _chunk_data(scanner: Scanner) -> _Step | None:
    scanner._left -= scanner._take_body(scanner._left)
    return None if scanner._left else _chunk_end


def _chunk_end(scanner: Scanner) -> _Step | None:
    footer = scanner._buffer[:2]
    if footer != b"\r\n"[: len(footer)]:
        raise ProtocolError(f"a chunk is followed by {footer!r}, not by a line end")
    if len(footer) < 2:
        return None
    scanner._drop(2)
    return _chunk_head


def _trailer(scanner: Scanner) -> _Step | None:
    for blank in (b"\n", b"\r\n"):
        if scanner._buffer.startswith(blank):
            scanner._drop(len(blank))
            return _whole
    match = _BLANK_LINE.search(scanner._buffer)
    if match is None:
        scanner._find(b"\n\n", "trailer")
        return None
    for index, line in enumerate(scanner._buffer[: match.start()].split(b"\n")):
        folded = index > 0 and line[:1] in (b" ", b"\t")
        if not folded and not _HEADER.fullmatch(line.removesuffix(b"\r")):
            raise ProtocolError(f"not a trailer: {line[:80]!r}")
    scanner._drop(match.end())
    return _whole
