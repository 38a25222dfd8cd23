"""Decodes ticks and findings of a run file; a tick's histograms only when they are used.

After a night at 6,450 heartbeats a second histograms are nine tenths of the file: all decoded they
would take gigabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import msgspec

from asyncli.core.histogram import Histogram
from asyncli.model.errors import StoreError
from asyncli.model.records import HISTOGRAMS, MOST, Finding, Tick
from asyncli.model.text import printable

_decode_histogram = msgspec.msgpack.Decoder(Histogram).decode
_NONE = msgspec.msgpack.encode(Histogram())


class StoredHistogram:
    """A read-only :class:`Histogram` that keeps its packed bytes, and from the first decoding on
    its least and greatest value: whether a second had a late answer is asked again of each. Raises
    :class:`StoreError` if they are damaged.
    """

    __slots__ = ("_packed", "greatest", "least")
    least: int
    greatest: int
    # The last decoded one: its counts, least and greatest are used together. Replaced as a whole,
    # for threads.
    _last: ClassVar[tuple[object, Histogram]] = (None, Histogram())

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def decoded(self) -> Histogram:
        owner, histogram = StoredHistogram._last
        if owner is not self._packed:
            try:
                histogram = _decode_histogram(self._packed)
            except msgspec.MsgspecError as error:
                why = str(error)[:200]
                raise StoreError(
                    f"the run file is damaged: invalid histogram ({why}); use another copy"
                ) from None
            StoredHistogram._last = (self._packed, histogram)
            self.least = histogram.least
            self.greatest = histogram.greatest
        return histogram

    def opened(self) -> Histogram:
        """As :meth:`decoded`; the name that a decoded one has too."""
        return self.decoded()

    def __getattr__(self, name: str) -> Any:
        # Of least and greatest, where nothing was decoded so far.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.decoded(), name)

    def __bool__(self) -> bool:
        return self._packed != _NONE

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StoredHistogram):
            return self.decoded() == other.decoded()
        return self.decoded() == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.decoded())


def _outline() -> type[msgspec.Struct]:
    """A type with the fields of Tick, but packed histograms."""
    fields: list[tuple[str, Any, Any]] = []
    for field in msgspec.structs.fields(Tick):
        if field.name in HISTOGRAMS:
            fields.append((field.name, msgspec.Raw, msgspec.Raw(_NONE)))
        elif field.default_factory is not msgspec.NODEFAULT:
            fields.append(
                (field.name, field.type, msgspec.field(default_factory=field.default_factory))
            )
        else:
            fields.append((field.name, field.type, field.default))
    return msgspec.defstruct("TickOutline", fields)


_decode_outline = msgspec.msgpack.Decoder(_outline()).decode
_HISTOGRAM_FIELDS = tuple(Tick.__struct_fields__.index(name) for name in HISTOGRAMS)


def decode_tick(payload: bytes) -> Tick:
    """Decode a tick. Raises :class:`msgspec.MsgspecError` if it is none."""
    values = list(msgspec.structs.astuple(_decode_outline(payload)))
    for place in _HISTOGRAM_FIELDS:
        packed = bytes(values[place])
        values[place] = Histogram() if packed == _NONE else cast(Histogram, StoredHistogram(packed))
    tick = Tick(*values)
    # Also of what is no number, which is neither.
    are_times = (
        0 <= tick.cpu_user_s <= MOST
        and 0 <= tick.cpu_system_s <= MOST
        and 0 <= tick.longest_turn_s <= MOST
        and 0 <= tick.longest_wait_s <= MOST
    )
    if not are_times:
        raise msgspec.ValidationError(f"a time below 0 or beyond {MOST:g} in a tick")
    # The file may be another's: causes are printed.
    if tick.failures:
        tick.failures = {printable(cause): count for cause, count in tick.failures.items()}
    if tick.deaths:
        tick.deaths = {printable(cause): deaths for cause, deaths in tick.deaths.items()}
    return tick


_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode


def decode_finding(row: Sequence[Any]) -> tuple[float, Finding]:
    """Decode a row of the findings table: its instant (s) and the finding; an older file has no
    fields.

    Raises :class:`msgspec.MsgspecError` if it is none.
    """
    t_s, *texts = row
    values = dict(zip(Finding.__struct_fields__, texts, strict=False))
    if "fields" in values:
        values["fields"] = _decode_fields(values["fields"])
    return t_s, msgspec.convert(values, Finding)
