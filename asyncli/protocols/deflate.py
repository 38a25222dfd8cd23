"""WebSocket with permessage-deflate (RFC 7692): the negotiation, our messages compressed, the
server's inflated.

It measures what compression costs the server. So only texts that may answer a message are inflated;
other compressed messages are counted by their compressed bytes and not checked. Tested against
wsproto and websockets, frame by frame, for any split of the bytes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence

from asyncli.model.protocol_table import NOT_OFFERED, UNREAD
from asyncli.model.records import ProtocolCounts
from asyncli.model.template import Fields
from asyncli.protocols.grant import shown_bytes
from asyncli.protocols.interface import ANSWER, Event, ProtocolError
from asyncli.protocols.websocket import (
    CONTROL,
    OPCODE,
    RESERVED,
    TEXT,
    ServerFrames,
    WebSocket,
    frame,
)

_RSV1 = 0x40
# The end of each message, which is not sent (section 7.2.1).
_TAIL = b"\0\0\xff\xff"
_NAME, _WINDOW, _NO_CONTEXT = (
    b"permessage-deflate",
    b"server_max_window_bits",
    b"server_no_context_takeover",
)
_PARAMETER = re.compile(
    rb'(?:server|client)_(?:no_context_takeover|max_window_bits[ \t]*=[ \t]*("?)([89]|1[0-5])\1)'
)
# A row's grant: the window bits of the server's messages, and a flag: each message has a new
# context.
_BITS, _FRESH = 0xF, 0x10
# The bytes inflated at a time, and of one message: a message may inflate a thousandfold, at
# asyncli's cost.
_MOST_INFLATED, _MOST_MESSAGE = 65_536, 1 << 24


class Deflated(WebSocket):
    """Offers permessage-deflate, by a header in ``requests``. A row takes a byte; with a
    ``message``, once its server sends a compressed answer and keeps the context, also an inflater:
    7 kB and its window.
    """

    def __init__(
        self,
        requests: Sequence[bytes],
        entropy: Callable[[int], bytes],
        message: bytes,
        fields: Fields,
    ) -> None:
        super().__init__(requests, entropy, message, fields)
        self._compressed = b"" if self._message.varies else deflated(self._message(0))
        self._grants = bytearray()
        self._inflaters: dict[int, zlib._Decompress] = {}
        self._granted: dict[str, int] = {}

    def heartbeat_for(self, row: int, target: int) -> bytes:
        if not (self._speaks and self._grants[row]):
            return super().heartbeat_for(row, target)
        return frame(
            TEXT | _RSV1, self._compressed or deflated(self._next_text(row)), self._entropy(4)
        )

    def add_counts(self, counts: ProtocolCounts) -> None:
        super().add_counts(counts)
        counts.deflate, self._granted = self._granted, {}

    def forget(self, row: int) -> None:
        super().forget(row)
        self._inflaters.pop(row, None)

    def _agree(self, row: int, extensions: list[bytes]) -> None:
        self._grants.extend(bytes(max(0, row + 1 - len(self._grants))))
        self._grants[row] = 0
        if extensions:
            parameters = parameters_of(b",".join(extensions))
            self._grants[row] = int(parameters.get(_WINDOW, b"15")) | _FRESH * (
                _NO_CONTEXT in parameters
            )
            shown = "; ".join(
                b"=".join(filter(None, parameter)).decode()
                for parameter in ((_NAME, b""), *sorted(parameters.items()))
            )
            self._granted[shown] = self._granted.get(shown, 0) + 1

    def _frames(self, row: int) -> ServerFrames:
        if not self._grants[row]:
            return super()._frames(row)
        return _DeflatedFrames(
            self._message(row), self._answer, row, self._grants[row], self._inflaters
        )


def deflated(text: bytes) -> bytes:
    """``text`` compressed by Huffman coding alone, without back references: it fits any window that
    a server allows, needs no context, and is the same bytes each time.
    """
    # zlib's least memory, since it searches for no matches.
    deflater = zlib.compressobj(wbits=-9, memLevel=1, strategy=zlib.Z_HUFFMAN_ONLY)
    return (deflater.compress(text) + deflater.flush(zlib.Z_SYNC_FLUSH)).removesuffix(_TAIL)


def parameters_of(extensions: bytes) -> dict[bytes, bytes]:
    """The parameters that a server grants, by name (section 7.1). Raises :class:`ProtocolError` for
    invalid ones.
    """
    name, *parameters = map(bytes.strip, extensions.split(b";"))
    values: dict[bytes, bytes] = {}
    for parameter in parameters:
        key = parameter.partition(b"=")[0].strip()
        if (match := _PARAMETER.fullmatch(parameter)) is None or key in values:
            raise ProtocolError(f"{NOT_OFFERED} in this form: {shown_bytes(extensions)}")
        values[key] = match[2] or b""
    if name != _NAME:
        raise ProtocolError(f"{NOT_OFFERED}: {shown_bytes(extensions)}")
    return values


class _DeflatedFrames(ServerFrames):
    """The frames of a connection with compression. ``inflaters``: by row, of those that have
    received a compressed answer.
    """

    __slots__ = ("_compressed", "_grant", "_inflated_bytes", "_inflaters", "_row")

    def __init__(
        self,
        expected: bytes,
        answer: Event,
        row: int,
        grant: int,
        inflaters: dict[int, zlib._Decompress],
    ) -> None:
        super().__init__(expected, answer)
        self._row, self._grant, self._inflaters = row, grant, inflaters
        self._compressed = False  # the current message

    def _head(self, data: bytes, at: int) -> int | None:
        if not self._opcode and at < len(data) and not data[at] & CONTROL:
            self._compressed, self._inflated_bytes = bool(data[at] & _RSV1), 0
        return super()._head(data, at)

    def _check_reserved_bits(self, first: int) -> None:
        if first & RESERVED != _RSV1 or first & CONTROL or not first & OPCODE:
            raise ProtocolError("a frame with reserved bits that the extension does not allow")

    def _take(self, part: bytes, ends: bool) -> None:
        if not self._compressed:
            super()._take(part, ends)
            return
        if not self.expected:
            self._decode = None
            super()._take(part, ends)
            return
        # The same bytes mean something else in the next message.
        self._answer = _OWN_ANSWER
        for text in self._inflated(part + _TAIL if ends else part):
            super()._take(text, False)
        if ends:
            super()._take(b"", True)
            # A final block (section 7.2.3.4) ends the context too.
            if self._grant & _FRESH or self._inflaters[self._row].eof:
                del self._inflaters[self._row]

    def _inflated(self, part: bytes) -> Iterator[bytes]:
        inflater = self._inflaters.get(self._row)
        if inflater is None:
            inflater = self._inflaters[self._row] = zlib.decompressobj(-(self._grant & _BITS))
        # Bytes after a final block have no use, and zlib would keep them.
        while not inflater.eof:
            try:
                text = inflater.decompress(part, _MOST_INFLATED)
            except zlib.error:
                raise ProtocolError("a message that cannot be inflated") from None
            self._inflated_bytes += len(text)
            if self._inflated_bytes > _MOST_MESSAGE:
                raise ProtocolError(
                    f"{UNREAD}a message that inflates to over {_MOST_MESSAGE >> 20} MiB"
                )
            yield text
            part = inflater.unconsumed_tail
            if not part:
                return


_OWN_ANSWER = Event(0, True, kind=ANSWER, own=True)
