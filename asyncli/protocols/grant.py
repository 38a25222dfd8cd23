"""A request of HTTP that the peer must grant before a connection is held: an upgrade, or a stream that goes on."""

from __future__ import annotations

import re
from collections.abc import Container

from asyncli.protocols.http1 import BLANK_LINE, MOST_HEAD_BYTES, fields_of
from asyncli.protocols.interface import ProtocolError
from asyncli.text import oneline

#: What a refusal says of each status.
Refusals = dict[int, tuple[str, str]]
_LONGEST_WORDS = 80


def shown_bytes(value: bytes) -> str:
    """A peer's words, in a report."""
    return oneline(value.strip()[:_LONGEST_WORDS].decode("latin-1"))


class AnswerHead:
    """The answer that grants it: its status line, its fields, and what came after its head."""

    def __init__(self, line: re.Match[bytes], fields: dict[bytes, list[bytes]], rest: bytes) -> None:
        self.line, self.fields, self.rest = line, fields, rest
        self.status = int(line[3])

    def field(self, name: bytes) -> bytes:
        """The field's values as one, in small letters."""
        return b",".join(self.fields.get(name, [])).lower()


class Grant:
    """The answer to one row's request, which any of ``statuses`` grants."""

    def __init__(self, statuses: Container[int], refusals: Refusals) -> None:
        self._statuses, self._refusals = statuses, refusals
        self._head, self._looked = bytearray(), 0

    def feed(self, data: bytes) -> AnswerHead | None:
        """None while the head is not whole. Raises :class:`ProtocolError`, in the words of a report."""
        self._head += data
        while True:
            end = BLANK_LINE.search(self._head, self._looked)
            if (len(self._head) if end is None else end.end()) > MOST_HEAD_BYTES:
                raise ProtocolError(f"a head of more than {MOST_HEAD_BYTES} bytes")
            if end is None:
                # Its last two bytes may begin the blank line.
                self._looked = max(0, len(self._head) - 2)
                return None
            line, fields = fields_of(bytes(self._head[: end.end()]))
            del self._head[: end.end()]
            self._looked, status = 0, int(line[3])
            if status in self._statuses:
                return AnswerHead(line, fields, bytes(self._head))
            if status >= 200 or status == 101:
                raise ProtocolError(self._refused(line, fields))

    def _refused(self, line: re.Match[bytes], fields: dict[bytes, list[bytes]]) -> str:
        """Status, reason, and where it redirects, or the first line of its body."""
        if b"location" in fields:
            more = b"Location: " + fields[b"location"][0]
        else:
            body = bytes(self._head)
            more = (body.partition(b"\n")[2] if b"transfer-encoding" in fields else body).partition(b"\n")[0]
        said = (shown_bytes(line[4] or b""), shown_bytes(more))
        # Of each status the first one's words: others may have the time in them.
        reason, more_said = self._refusals.setdefault(int(line[3]), said)
        return f"HTTP {int(line[3])} {reason}".rstrip() + (f": {more_said}" if more_said else "")
