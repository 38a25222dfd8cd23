"""Elements of MQTT packets: numbers, strings, and the properties of MQTT 5."""

from __future__ import annotations

from asyncli.protocols.interface import ProtocolError

# The types of properties (MQTT 5, section 2.2.2).
_BYTE, _TWO, _FOUR, _VARYING, _TEXT, _BINARY, _PAIR = range(7)
_TYPES = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), _BYTE),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), _TWO),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), _FOUR),
    0x0B: _VARYING,
    0x26: _PAIR,
    **dict.fromkeys((0x09, 0x16), _BINARY),
    **dict.fromkeys((0x03, 0x08, 0x12, 0x15, 0x1A, 0x1C, 0x1F), _TEXT),
}
_SIZES = {_BYTE: 1, _TWO: 2, _FOUR: 4}
SERVER_KEEP_ALIVE, REASON_STRING = 0x13, 0x1F
_RESPONSE_TOPIC, _REPEATED = 0x08, (0x0B, 0x26)
_IS_0_OR_1, _IS_NOT_0 = (0x01, 0x24, 0x25, 0x28, 0x29, 0x2A), (0x0B, 0x21, 0x27)
#: The properties that a server may send. Not a topic alias (0x23) with a publication: asyncli
#: allows none.
OF_CONNACK = frozenset(
    (0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x21, 0x22, *range(0x24, 0x2B))
)
OF_PUBLISH = frozenset((0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x26))
OF_DISCONNECT = frozenset((0x1C, 0x1F, 0x26))
OF_ANSWER = frozenset((0x1F, 0x26))


class IncompleteError(Exception):
    """The data received so far ends before ``needed``."""

    def __init__(self, needed: int) -> None:
        super().__init__()
        self.needed = needed


def require(data: bytes, needed: int) -> int:
    """Returns ``needed``; raises :class:`IncompleteError` if ``data`` is shorter."""
    if len(data) < needed:
        raise IncompleteError(needed)
    return needed


def varying(data: bytes, at: int, strict: bool = True) -> tuple[int, int]:
    """A number of one to four bytes, and its end. ``strict``: in as few bytes as possible (MQTT 5,
    section 1.5.5).
    """
    value = 0
    for place in range(4):
        byte = data[require(data, at + place + 1) - 1]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            if place and not byte and strict:
                raise ProtocolError("a length that is not minimally encoded")
            return value, at + place + 1
    raise ProtocolError("a length of more than four bytes")


def utf8(data: bytes, what: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ProtocolError(f"{what} that is not UTF-8, or has a NUL in it")
    return text


def properties(data: bytes, allowed: frozenset[int], packet: str) -> dict[int, bytes]:
    """The last value of each property; ``data``: their length and the properties."""
    values: dict[int, bytes] = {}
    try:
        size, at = varying(data, 0)
        if at + size != len(data):
            raise ProtocolError(f"{packet} whose properties are not as long as they say")
        while at < len(data):
            name, at = varying(data, at)
            if name not in allowed:
                raise ProtocolError(f"{packet} with the property {name}")
            if name in values and name not in _REPEATED:
                raise ProtocolError(f"{packet} with the property {name} twice")
            values[name], at = _value(name, data, at)
    except IncompleteError:
        raise ProtocolError(f"{packet} whose properties are cut") from None
    return values


def _value(name: int, data: bytes, at: int) -> tuple[bytes, int]:
    """A property's value, and its end."""
    form = _TYPES[name]
    if form == _VARYING:
        number, end = varying(data, at)
        value = number.to_bytes(4)
    elif form in _SIZES:
        end = require(data, at + _SIZES[form])
        value = data[at:end]
    else:
        end = at
        for _ in range(2 if form == _PAIR else 1):
            begin = require(data, end + 2)
            end = require(data, begin + int.from_bytes(data[end:begin]))
            value = data[begin:end]
            text = "" if form == _BINARY else utf8(value, f"the property {name}")
        if name == _RESPONSE_TOPIC and ("#" in text or "+" in text):
            raise ProtocolError("a response topic with wildcards")
    if not _is_valid(name, value):
        raise ProtocolError(f"the property {name} with an invalid value")
    return value, end


def _is_valid(name: int, value: bytes) -> bool:
    if name in _IS_0_OR_1:
        return value <= b"\1"
    if name in _IS_NOT_0:
        return any(value)
    return True
