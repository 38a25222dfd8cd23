"""How a row of a server's page of metrics is named, and which names speak of connections. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: The longest name with labels that is recorded, in characters.
LONGEST_ROW = 200
#: What a count of connections is called, the likeliest first.
SPOKEN_OF = ("conn", "socket", "client", "session", "active", "open")
# What --metrics-map can name: see metrics_map.py.
_NAME = re.compile(r"[^\s{}\"=,]{1,200}")


def row_name(name: str, labels: Mapping[str, str]) -> str:
    """``ws_open{pool="a"}``, as --metrics-map names a row; "" if it cannot name this one."""
    if _NAME.fullmatch(name) is None:
        return ""
    if not labels:
        return name if name.isprintable() else ""
    pairs = []
    for label, value in labels.items():
        if '"' in value or "\\" in value:
            return ""
        pairs.append(f'{label}="{value}"')
    row = f"{name}{{{','.join(pairs)}}}"
    if len(row) > LONGEST_ROW or not row.isprintable():
        return ""
    return row


def place_among_names(name: str) -> int:
    """0 for a name that speaks of connections most plainly; the number of :data:`SPOKEN_OF` for one
    that says nothing of them. ``name``: with labels or without, which are not looked at.
    """
    lowered = name.partition("{")[0].lower()
    for place, word in enumerate(SPOKEN_OF):
        if word in lowered:
            return place
    return len(SPOKEN_OF)
