"""Results as JSON."""

from __future__ import annotations

import math
from typing import Any

import msgspec


def to_json(found: msgspec.Struct) -> str:
    """The JSON of a run or a search, in the contract's order; every number is finite."""
    return finite_json(msgspec.to_builtins(found, str_keys=True))


def finite_json(document: Any) -> str:
    """Plain data as indented JSON, with null for NaN and infinity."""
    return msgspec.json.format(msgspec.json.encode(finite(document)), indent=2).decode()


def finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
