"""HPACK (RFC 7541): encodes a request's headers, with or without the server's dynamic table, and
reads a response's status.
"""

from __future__ import annotations

import re

from asyncli.protocols.interface import ProtocolError

_MOST_STATIC = 61
_STATUSES = {8: 200, 9: 204, 10: 206, 11: 304, 12: 400, 13: 404, 14: 500}
_STATUS_NAMES = (b":status", b"\xb8\x84\x8d\x36\xa3")  # plain, and Huffman coded
# The Huffman codes of digits: 5 bits for 0 to 2 and 6 for the others, then padding by ones
# (appendix B).
_DIGITS = re.compile("(000(?:00|01|10)|011(?:001|01.|1..))" * 3 + "1{0,7}")
#: How a connection encodes its next request: PLAIN, in literals that are not indexed; SHRINKS, the
#: same after it sets the size of the server's table to 0, for servers that allow less than the
#: default (section 4.2); FILLS, in literals that fill the table; REFERS, by references to those.
#: And how it encodes the one after that.
ENCODINGS = PLAIN, SHRINKS, FILLS, REFERS = range(4)
NEXT_ENCODING = (PLAIN, PLAIN, REFERS, REFERS)
#: The default size of a server's table, and what an entry takes of it beside its text (section
#: 4.1).
TABLE_BYTES, _ENTRY_BYTES = 4096, 32
# Static entries with name and value.
_WHOLE = {
    (b":method", b"GET"): 2,
    (b":path", b"/"): 4,
    (b":scheme", b"http"): 6,
    (b":scheme", b"https"): 7,
}


def header_block(request: bytes, scheme: bytes, encoding: int = PLAIN) -> bytes:
    """The HTTP/2 header block of an HTTP/1.1 request without a body. HEADs and GETs of one
    connection share a table: all fields except the method, as far as they fit.
    """
    line, *lines = request.removesuffix(b"\r\n\r\n").split(b"\r\n")
    method, path, _ = line.split(b" ")
    fields = [
        (name.strip().lower(), value.strip())
        for name, _, value in (field.partition(b":") for field in lines)
    ]
    pseudo = [
        (b":method", method),
        (b":scheme", scheme),
        (b":path", path),
        (b":authority", dict(fields)[b"host"]),
    ]
    fields = pseudo + [field for field in fields if field[0] != b"host"]
    literals = [_text(name) + _text(value) for name, value in fields]
    if encoding in (PLAIN, SHRINKS):
        return b"\x20" * (encoding == SHRINKS) + b"".join(b"\0" + literal for literal in literals)
    room, tabled = TABLE_BYTES, list[int]()
    for at, (name, value) in enumerate(fields):
        size = len(name) + len(value) + _ENTRY_BYTES
        if at and (name, value) not in _WHOLE and size <= room:
            room -= size
            tabled.append(at)
    newest, block = _MOST_STATIC + len(tabled), b""
    for at, literal in enumerate(literals):
        if at in tabled:
            block += (
                b"\x40" + literal
                if encoding == FILLS
                else _integer(newest - tabled.index(at), 0x80)
            )
        else:
            block += _integer(_WHOLE[fields[at]], 0x80) if fields[at] in _WHOLE else b"\0" + literal
    return block


def _text(text: bytes) -> bytes:
    return _integer(len(text)) + text


def _integer(value: int, flag: int = 0) -> bytes:
    """An integer with a prefix of 7 bits (section 5.1)."""
    if value < 127:
        return bytes((flag | value,))
    value, written = value - 127, bytes((flag | 127,))
    while value >= 128:
        value, written = value >> 7, written + bytes((value & 127 | 128,))
    return written + bytes((value,))


def status_of(block: bytes) -> int:
    """The ``:status`` at the start of a header block, else 0; the rest is checked for references to
    a dynamic table.
    """
    at, status, fields = 0, 0, 0
    while at < len(block):
        first = block[at]
        name = value = (False, b"")
        if first & 0xE0 == 0x20:
            size, at = _number(block, at, 5)
            if size or fields:
                raise ProtocolError("a dynamic table, which was not granted")
            continue
        index, at = _number(block, at, 7 if first & 0x80 else 6 if first & 0x40 else 4)
        if not first & 0x80:
            if not index:
                name, at = _string(block, at)
            value, at = _string(block, at)
        if index > _MOST_STATIC or first == 0x80:
            raise ProtocolError("a header of the dynamic table, which was not granted")
        if not fields:
            named = index in _STATUSES or (not index and name[1] == _STATUS_NAMES[name[0]])
            status = _STATUSES.get(index, 0) if first & 0x80 else _digits(*value) if named else 0
        fields += 1
    return status


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """An integer and its end (section 5.1)."""
    mask = (1 << bits) - 1
    number, at = block[at] & mask, at + 1
    if number < mask:
        return number, at
    for shift in range(0, 35, 7):
        if at == len(block):
            break
        number, at = number + ((block[at] & 127) << shift), at + 1
        if block[at - 1] < 128:
            return number, at
    raise ProtocolError("a block of headers with a number that does not end")


def _string(block: bytes, at: int) -> tuple[tuple[bool, bytes], int]:
    """A string as (Huffman coded, bytes), and its end (section 5.2)."""
    if at == len(block):
        raise ProtocolError("a block of headers that is cut")
    coded = block[at] >= 128
    size, at = _number(block, at, 7)
    if size > len(block) - at:
        raise ProtocolError("a block of headers that is cut")
    return (coded, block[at : at + size]), at + size


def _digits(coded: bool, text: bytes) -> int:
    """The number of three digits, else 0."""
    if coded:
        match = _DIGITS.fullmatch(f"{int.from_bytes(text):0{8 * len(text)}b}") if text else None
        codes = [] if match is None else [(len(code), int(code, 2)) for code in match.groups()]
        text = b"".join(b"%d" % (code if bits == 5 else code - 22) for bits, code in codes)
    return int(text) if len(text) == 3 and text.isdigit() else 0
