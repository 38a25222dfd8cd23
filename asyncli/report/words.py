"""Numbers as words for people; what is unknown is a dash, never a NaN."""

from __future__ import annotations

from asyncli.units import format_bytes, format_count


def or_dash(value: float | None, spec: str) -> str:
    """``value`` formatted by ``spec``, or "-"."""
    return "-" if value is None else format(value, spec)


def milliseconds(value: float | None) -> str:
    """Milliseconds with the digits that matter: ``"0.42 ms"``, ``"12 ms"``, ``"1.80 s"``."""
    if value is None:
        return "-"
    if value >= 1000:
        return f"{value / 1000:,.2f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def cores(share: float | None) -> str:
    """CPU use in percent of one core, as top(1) counts: 250 % is two and a half cores."""
    return "-" if share is None else f"{share * 100:.0f} % of a core" if share < 1 else f"{share:.1f} cores"


def bytes_each(value: float) -> str:
    """Bytes per connection, to the byte up to 100 kB: ``"9,640 B"``."""
    return f"{format_count(value)} B" if abs(value) < 100_000 else format_bytes(value)


def oneline(text: str) -> str:
    """``text`` on one line, without what could steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in " ".join(text.split()))
