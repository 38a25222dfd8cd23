"""Labels as Prometheus writes them: ``code="200",route="/a"``. Pure."""

from __future__ import annotations

import re

# With what separates it from the next one: a list of labels is matched one after the other.
_LABEL = re.compile(
    r'(?P<name>[A-Za-z_][A-Za-z0-9_]*+)[ \t]*+=[ \t]*+"(?P<value>(?:[^"\\]++|\\.)*+)"'
    r"[ \t]*+(?:,[ \t]*+|\Z)"
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


def parse_labels(text: str) -> dict[str, str] | None:
    """The labels in ``text``, without their braces; None if something else stands there."""
    text = text.strip(" \t")
    labels: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _LABEL.match(text, position)
        if match is None:
            return None
        value = match["value"]
        if "\\" in value:
            value = _ESCAPE.sub(_unescaped, value)
        labels[match["name"]] = value
        position = match.end()
    return labels


def _unescaped(match: re.Match[str]) -> str:
    # An unknown escape stays as it is, as in Prometheus.
    return _ESCAPED.get(match[1], match[0])
