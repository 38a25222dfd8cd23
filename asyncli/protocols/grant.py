"""An HTTP request that the server must accept before a connection is held: an upgrade, or a stream
without end.
"""

from __future__ import annotations

import re
from collections.abc import Container

from asyncli.model.protocol_table import UNREAD
from asyncli.model.text import MOST_SHOWN, oneline, shortened
from asyncli.protocols.http1 import BLANK_LINE, MOST_HEAD_BYTES, fields_of
from asyncli.protocols.interface import ProtocolError

#: By status: the reason and the detail of the first refusal.
Refusals = dict[int, tuple[str, str]]


def shown_bytes(value: bytes) -> str:
    """A peer's text, shortened for a report."""
    return oneline(shortened(value.strip()[: MOST_SHOWN + 1].decode("latin-1")))


def _first_line(body: bytes, *, chunked: bool) -> bytes:
    """The first line of a body; of a chunked one after the size of its first chunk."""
    if chunked:
        _, _, body = body.partition(b"\n")
    line, _, _ = body.partition(b"\n")
    return line


class AnswerHead:
    """The accepting answer: its status line, its header fields, and the bytes after its head."""

    def __init__(
        self, line: re.Match[bytes], fields: dict[bytes, list[bytes]], rest: bytes
    ) -> None:
        self.line, self.fields, self.rest = line, fields, rest
        self.status = int(line[3])

    def field(self, name: bytes) -> bytes:
        """The field's values, joined and in lower case."""
        return b",".join(self.fields.get(name, [])).lower()


class Grant:
    """Reads the answer to one row's request, which any of ``statuses`` accepts."""

    def __init__(self, statuses: Container[int], refusals: Refusals) -> None:
        self._statuses, self._refusals = statuses, refusals
        self._head, self._looked = bytearray(), 0

    def feed(self, data: bytes) -> AnswerHead | None:
        """The head, or None while it is incomplete. Raises :class:`ProtocolError` for a refusal,
        worded for a report.
        """
        self._head += data
        while True:
            end = BLANK_LINE.search(self._head, self._looked)
            if (len(self._head) if end is None else end.end()) > MOST_HEAD_BYTES:
                raise ProtocolError(f"{UNREAD}a head of over {MOST_HEAD_BYTES:,} bytes")
            if end is None:
                # The last two bytes may begin the blank line.
                self._looked = max(0, len(self._head) - 2)
                return None
            line, fields = fields_of(bytes(self._head[: end.end()]))
            del self._head[: end.end()]
            self._looked, status = 0, int(line[3])
            if status in self._statuses:
                return AnswerHead(line, fields, bytes(self._head))
            if status >= 200 or status == 101:
                raise self._refused(status, line, fields)

    def _refused(
        self, status: int, line: re.Match[bytes], fields: dict[bytes, list[bytes]]
    ) -> ProtocolError:
        """With the status, the reason, and the target of a redirect or the first line of the
        body.
        """
        if b"location" in fields:
            target = b"Location: " + fields[b"location"][0]
        else:
            target = _first_line(bytes(self._head), chunked=b"transfer-encoding" in fields)
        # The first one's text for each status: other texts may differ by the time of day.
        reason, detail = self._refusals.setdefault(
            status, (shown_bytes(line[4] or b""), shown_bytes(target))
        )
        words = f"HTTP {status} {reason}".rstrip()
        if detail:
            words = f"{words}: {detail}"
        error = ProtocolError(words)
        error.status = status
        return error
