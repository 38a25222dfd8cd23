"""Server-sent events (WHATWG HTML, section 9.2), and other answers without end: rows send a GET and
listen to its body.

Events are checked and counted, not kept. A row takes a byte; if its events have ids, also a
reference to an id, which rows share if it is equal; if its peer sets a retry time, 4 bytes. Only a
row in the middle of a chunk, a line or an event has a reader. Tested against httpx-sse, event by
event, for any split of the bytes.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from asyncli.core.histogram import Histogram
from asyncli.model.protocol_table import NO_MORE_EVENTS, UNREAD
from asyncli.model.records import ProtocolCounts
from asyncli.model.template import Fields, Filled
from asyncli.protocols.grant import AnswerHead, Grant, Refusals, shown_bytes
from asyncli.protocols.http1 import Head, Scanner, head_of
from asyncli.protocols.interface import CLOSING, ESTABLISHED, NEWS, Event, Protocol, ProtocolError

if TYPE_CHECKING:
    from asyncli.protocols.settings import StreamSettings

# The state of a row's body: in chunks or until the stream's end, and whether its first line is
# still to come.
_BODIES = (Head(200, True, False, None), Head(200, True, True, None))
_CHUNKED, _FRESH = 1, 2
# It tells a client of events to stop reconnecting (the HTML standard, server-sent events).
_NO_CONTENT = 204
_BOM = b"\xef\xbb\xbf"
_DATA, _OTHER = b"data", b"other"
# An id is sent back to the server in a head, which servers limit to 8 KiB.
_LONGEST_ID = 4096
# The number of different ids that rows share.
_SHARED_IDS = 256
# The longest retry time that a peer may set (ms), and the longest line that sets it.
_LONGEST_WAIT_MS, _LONGEST_RETRY = 3_600_000, len(b"retry: ") + 20
_LIFE = Event(0, True, kind=NEWS)


class Stream(Protocol):
    """Rows that send one request and listen: with ``settings.events`` to server-sent events, else
    to the bytes of any answer.
    """

    def __init__(self, settings: StreamSettings, fields: Fields) -> None:
        self._requests = [Filled(request, fields) for request in settings.requests]
        self._events, self.silence_s = settings.events, settings.silence_s
        self.partial: dict[int, Grant | _Events | _Bytes] = {}
        self._refusals: Refusals = {}
        self._ended = set[int]()  # rows whose server has no more events
        self._bodies = bytearray()
        # The last event's id of each row, kept for its next connection; b"": it has none.
        self._ids: list[bytes] = []
        self._known_ids: dict[bytes, bytes] = {}
        self._waits_ms = array("I")  # by row: the retry time, kept likewise
        self._retry_s = Histogram()
        # One event goes to many rows: a read, the state of its row's body before it, and its
        # meaning.
        self._last: tuple[bytes, int, Event, bytes | None, int | None] = (b"", 0, _LIFE, None, None)

    def handshake(self, row: int, target: int) -> bytes:
        self.partial[row] = Grant(
            (200, _NO_CONTENT) if self._events else range(200, 300), self._refusals
        )
        last = self._ids[row] if row < len(self._ids) else b""
        return self._requests[target](row) + (
            b"Last-Event-ID: %b\r\n\r\n" % last if last else b"\r\n"
        )

    def feed(self, row: int, data: bytes, awaiting: int) -> Event | None:
        reader = self.partial.pop(row, None)
        if not data:
            return None
        if isinstance(reader, Grant):
            return self._begin(row, reader, data)
        whole, known, body = reader is None, self._last, self._bodies[row]
        if whole and data == known[0] and body == known[1]:
            if known[3] is not None:
                self._keep_id(row, known[3])
            if known[4] is not None:
                self._keep_wait(row, known[4])
            return known[2]
        reader = reader or self._reader(body)
        ended = reader.feed(data)
        event, last_id, wait_ms = reader.take_event(ended is not None)
        if last_id is not None:
            last_id = self._keep_id(row, last_id)
        if wait_ms is not None:
            self._keep_wait(row, wait_ms)
        if ended is None and not reader.at_rest:
            self.partial[row] = reader
        elif ended is None:
            self._bodies[row] = body & _CHUNKED
            if whole and not body & _FRESH:
                self._last = (data, body, event, last_id, wait_ms)
        return event

    def may_reopen(self, row: int) -> bool:
        return row not in self._ended

    def reopen_delay_s(self, row: int) -> float:
        wait_ms = self._waits_ms[row] if row < len(self._waits_ms) else 0
        if wait_ms:
            self._retry_s.add(wait_ms // 1000)
        return wait_ms / 1e3

    def add_counts(self, counts: ProtocolCounts) -> None:
        counts.retry_s, self._retry_s = self._retry_s, Histogram()

    def _begin(self, row: int, grant: Grant, data: bytes) -> Event | None:
        granted = grant.feed(data)
        if granted is not None and granted.status == _NO_CONTENT and self._events:
            self._ended.add(row)
            raise ProtocolError(NO_MORE_EVENTS)
        if granted is None:
            self.partial[row] = grant
            return None
        head = head_of(granted.line, granted.fields)
        self._require(granted, head)
        self._bodies.extend(bytes(max(0, row + 1 - len(self._bodies))))
        self._bodies[row] = head.chunked * _CHUNKED | self._events * _FRESH
        if not head.chunked and head.length is not None:
            # Only the reader knows how much is to come.
            reader = self.partial[row] = self._reader(self._bodies[row])
            reader.begin_body(head)
        return Event(0, True, kind=ESTABLISHED, rest=granted.rest)

    def _require(self, granted: AnswerHead, head: Head) -> None:
        kind, coding = granted.field(b"content-type"), granted.field(b"content-encoding")
        status = f"HTTP {head.status}: "
        if head.status in (204, 205) or (head.length == 0 and not head.chunked):
            raise ProtocolError(f"{status}an answer without a body")
        if self._events and kind.partition(b";")[0].strip() != b"text/event-stream":
            raise ProtocolError(
                f"{status}Content-Type: {shown_bytes(kind) or 'none'}, not text/event-stream"
            )
        if self._events and coding not in (b"", b"identity"):
            raise ProtocolError(
                f"{status}Content-Encoding: {shown_bytes(coding)}, so events cannot be read"
            )

    def _reader(self, body: int) -> _Events | _Bytes:
        reader = _Events(bool(body & _FRESH)) if self._events else _Bytes("GET")
        reader.begin_body(_BODIES[body & _CHUNKED])
        return reader

    def _keep_wait(self, row: int, wait_ms: int) -> None:
        self._waits_ms.extend([0] * (row + 1 - len(self._waits_ms)))
        self._waits_ms[row] = wait_ms

    def _keep_id(self, row: int, last: bytes) -> bytes:
        """Store the id of a row's last event; returns the shared object of equal ids."""
        if len(self._known_ids) > _SHARED_IDS:
            self._known_ids.clear()
        last = self._known_ids.setdefault(last, last)
        if last or row < len(self._ids):
            self._ids.extend([b""] * (row + 1 - len(self._ids)))
            self._ids[row] = last
        return last


class _Bytes(Scanner):
    """A body whose bytes are counted."""

    _reported = 0

    def take_event(self, ended: bool) -> tuple[Event, None, None]:
        """The meaning of the last read."""
        size, self._reported = self._body_bytes - self._reported, self._body_bytes
        return Event(0, not ended, size, CLOSING if ended else NEWS), None, None


class _Events(Scanner):
    """A body of events. ``fresh``: its first line is still to come."""

    def __init__(self, fresh: bool) -> None:
        super().__init__("GET")
        self._fresh = fresh
        self._line = b""  # the beginning of an incomplete line, if it must be kept
        self._kind = b""  # the kind of such a line, if its rest is only counted or skipped
        self._carriage_return = False  # the last line ended with one, and a line feed may follow
        self._id: bytes | None = None  # of the current event
        self._data = -1  # its bytes so far; -1: none
        self._begin_read()

    def _begin_read(self) -> None:
        self._messages = self._message_bytes = 0
        self._last_id: bytes | None = None
        self._wait_ms: int | None = None

    @property
    def at_rest(self) -> bool:
        # If a line feed after a carriage return follows, a new reader takes it for an empty line,
        # which means nothing.
        incomplete = self._line or self._kind or self._id is not None or self._data >= 0
        return not incomplete and super().at_rest

    def take_event(self, ended: bool) -> tuple[Event, bytes | None, int | None]:
        """The meaning of the last read, the id of its last event, and the retry time (ms) that it
        set; None: none.
        """
        event, last, wait_ms = _LIFE, self._last_id, self._wait_ms
        if ended or self._messages:
            event = Event(
                0, not ended, self._message_bytes, CLOSING if ended else NEWS, b"", self._messages
            )
        self._begin_read()
        return event, last, wait_ms

    def _take_body(self, most: int) -> int:
        at = self._at
        taken = super()._take_body(most)
        if taken:
            self._take_text(bytes(self._buffer[at : at + taken]))
        return taken

    def _take_text(self, text: bytes) -> None:
        if self._carriage_return:
            text = text.removeprefix(b"\n")
        self._carriage_return = text.endswith(b"\r")
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *lines = text.split(b"\n")
        if lines:
            self._end_line(first)
            first = lines.pop()
            for line in lines:
                self._field(line)
        self._go_on(first)

    def _end_line(self, rest: bytes) -> None:
        """The current line ends with ``rest``."""
        if self._kind:
            self._data += len(rest) if self._kind is _DATA else 0
            self._kind = b""
            return
        line, self._line = self._line + rest, b""
        if self._fresh:
            self._fresh, line = False, line.removeprefix(_BOM)
        self._field(line)

    def _field(self, line: bytes) -> None:
        if not line:
            self._dispatch()
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            # A line feed joins it to the data before.
            self._data += 1 + len(value) - value.startswith(b" ")
        elif name == b"id":
            value = value.removeprefix(b" ")
            if len(value) > _LONGEST_ID:
                raise ProtocolError(f"{UNREAD}an event's id of over {_LONGEST_ID:,} bytes")
            self._id = self._id if b"\0" in value else value
        elif (
            name == b"retry"
            and len(line) <= _LONGEST_RETRY
            and (digits := value.removeprefix(b" ")).isdigit()
        ):
            self._wait_ms = min(int(digits), _LONGEST_WAIT_MS)

    def _dispatch(self) -> None:
        if self._id is not None:
            self._last_id, self._id = self._id, None
        if self._data >= 0:
            self._messages += 1
            self._message_bytes += self._data
            self._data = -1

    def _go_on(self, part: bytes) -> None:
        """More of an incomplete line, which is kept only if needed."""
        if self._kind:
            self._data += len(part) if self._kind is _DATA else 0
            return
        self._line += part
        line = self._line.removeprefix(_BOM) if self._fresh else self._line
        if len(line) <= len(b"data: "):
            return
        if line.startswith(b"id:"):
            if len(line) > _LONGEST_ID + len(b"id: "):
                raise ProtocolError(f"{UNREAD}an event's id of over {_LONGEST_ID:,} bytes")
            return
        if line.startswith(b"retry:") and len(line) <= _LONGEST_RETRY:
            return
        self._kind = _DATA if line.startswith(b"data:") else _OTHER
        if self._kind is _DATA:
            self._field(line)
        self._fresh, self._line = False, b""
