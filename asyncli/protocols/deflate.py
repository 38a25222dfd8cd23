"""WebSocket with permessage-deflate (RFC 7692): what the server grants of it, our messages compressed, and theirs inflated.

It is there for what it costs the server. So no more is inflated than has to be: the texts that may answer a message. Others that
come compressed are counted as they came, and not judged. wsproto and websockets agree, frame by frame and however the bytes are
cut.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence

from asyncli.protocol_table import NOT_OFFERED
from asyncli.protocols.grant import shown_bytes
from asyncli.protocols.interface import ANSWER, Event, ProtocolError
from asyncli.protocols.websocket import CONTROL, OPCODE, RESERVED, TEXT, ServerFrames, WebSocket, frame
from asyncli.records import ProtocolCounts
from asyncli.template import Fields

_RSV1 = 0x40
# What ends a message and is not sent (section 7.2.1).
_TAIL = b"\0\0\xff\xff"
_NAME, _WINDOW, _NO_CONTEXT = b"permessage-deflate", b"server_max_window_bits", b"server_no_context_takeover"
_PARAMETER = re.compile(rb'(?:server|client)_(?:no_context_takeover|max_window_bits[ \t]*=[ \t]*("?)([89]|1[0-5])\1)')
# Of a row's grant: the window of what comes in the lower bits, and whether each message begins without what was before it.
_BITS, _FRESH = 0xF, 0x10
# So much is inflated at a time, whatever a message promises; and of one in all: a thousand times as much may come of what was
# sent, and the time that it takes is asyncli's.
_MOST_INFLATED, _MOST_MESSAGE = 65_536, 1 << 24


class Deflated(WebSocket):
    """Offers it, for which ``requests`` have the header. A row takes a byte; and with a ``message``, once its server answers with
    a compressed one and keeps its context, an inflater: 7 kB and its window.
    """

    def __init__(self, requests: Sequence[bytes], entropy: Callable[[int], bytes], message: bytes, fields: Fields) -> None:
        super().__init__(requests, entropy, message, fields)
        self._compressed = b"" if self._message.varies else deflated(self._message(0))
        self._grants = bytearray()
        self._inflaters: dict[int, zlib._Decompress] = {}
        self._granted: dict[str, int] = {}

    def heartbeat_for(self, row: int, target: int) -> bytes:
        if not (self._speaks and self._grants[row]):
            return super().heartbeat_for(row, target)
        return frame(TEXT | _RSV1, self._compressed or deflated(self._message(row)), self._entropy(4))

    def add_counts(self, counts: ProtocolCounts) -> None:
        counts.deflate, self._granted = self._granted, {}

    def forget(self, row: int) -> None:
        super().forget(row)
        self._inflaters.pop(row, None)

    def _agree(self, row: int, extensions: list[bytes]) -> None:
        self._grants.extend(bytes(max(0, row + 1 - len(self._grants))))
        self._grants[row] = 0
        if extensions:
            parameters = parameters_of(b",".join(extensions))
            self._grants[row] = int(parameters.get(_WINDOW, b"15")) | _FRESH * (_NO_CONTEXT in parameters)
            said = "; ".join(b"=".join(filter(None, one)).decode() for one in ((_NAME, b""), *sorted(parameters.items())))
            self._granted[said] = self._granted.get(said, 0) + 1

    def _frames(self, row: int) -> ServerFrames:
        if not self._grants[row]:
            return super()._frames(row)
        return _DeflatedFrames(self._message(row), self._answer, row, self._grants[row], self._inflaters)


def deflated(text: bytes) -> bytes:
    """By Huffman's code alone: nothing in it refers back, so any window that a server allows is enough, and its context is never
    used. The same bytes each time.
    """
    # zlib's least memory, since there is nothing to look for.
    deflater = zlib.compressobj(wbits=-9, memLevel=1, strategy=zlib.Z_HUFFMAN_ONLY)
    return (deflater.compress(text) + deflater.flush(zlib.Z_SYNC_FLUSH)).removesuffix(_TAIL)


def parameters_of(extensions: bytes) -> dict[bytes, bytes]:
    """What a server grants of it, by name (section 7.1). Raises :class:`ProtocolError` for what may not be granted."""
    name, *parameters = map(bytes.strip, extensions.split(b";"))
    found: dict[bytes, bytes] = {}
    for parameter in parameters:
        key = parameter.partition(b"=")[0].strip()
        if (match := _PARAMETER.fullmatch(parameter)) is None or key in found:
            raise ProtocolError(f"{NOT_OFFERED} so: {shown_bytes(extensions)}")
        found[key] = match[2] or b""
    if name != _NAME:
        raise ProtocolError(f"{NOT_OFFERED}: {shown_bytes(extensions)}")
    return found


class _DeflatedFrames(ServerFrames):
    """Where it was granted. ``inflaters``: by row, of those whose server has sent what has to be inflated."""

    __slots__ = ("_compressed", "_grant", "_inflated_bytes", "_inflaters", "_row")

    def __init__(self, expected: bytes, answer: Event, row: int, grant: int, inflaters: dict[int, zlib._Decompress]) -> None:
        super().__init__(expected, answer)
        self._row, self._grant, self._inflaters = row, grant, inflaters
        self._compressed = False  # the message that has begun

    def _head(self, data: bytes, at: int) -> int | None:
        if not self._opcode and at < len(data) and not data[at] & CONTROL:
            self._compressed, self._inflated_bytes = bool(data[at] & _RSV1), 0
        return super()._head(data, at)

    def _of_extension(self, first: int) -> None:
        if first & RESERVED != _RSV1 or first & CONTROL or not first & OPCODE:
            raise ProtocolError("a frame with reserved bits set that the extension does not use so")

    def _take(self, part: bytes, ends: bool) -> None:
        if not self._compressed:
            super()._take(part, ends)
            return
        if not self._expected:
            self._decode = None
            super()._take(part, ends)
            return
        # Of the next message the same bytes would mean something else.
        self._answer = _OWN_ANSWER
        for text in self._inflated(part + _TAIL if ends else part):
            super()._take(text, False)
        if ends:
            super()._take(b"", True)
            # A last block is one as well (section 7.2.3.4), and nothing goes on from there.
            if self._grant & _FRESH or self._inflaters[self._row].eof:
                del self._inflaters[self._row]

    def _inflated(self, part: bytes) -> Iterator[bytes]:
        inflater = self._inflaters.get(self._row)
        if inflater is None:
            inflater = self._inflaters[self._row] = zlib.decompressobj(-(self._grant & _BITS))
        # What follows a last block is of no use, and would be kept.
        while not inflater.eof:
            try:
                text = inflater.decompress(part, _MOST_INFLATED)
            except zlib.error:
                raise ProtocolError("a message that cannot be inflated") from None
            self._inflated_bytes += len(text)
            if self._inflated_bytes > _MOST_MESSAGE:
                raise ProtocolError(f"a message that inflates to more than {_MOST_MESSAGE >> 20} MiB")
            yield text
            part = inflater.unconsumed_tail
            if not part:
                return


_OWN_ANSWER = Event(0, True, kind=ANSWER, own=True)
