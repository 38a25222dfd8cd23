"""Results as JSON."""

from __future__ import annotations

from typing import Any

import msgspec


def to_json(found: Any) -> str:
    """A struct or plain data as indented JSON. msgspec writes null for NaN and infinity."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
