"""Structs of counts that add up, each field by the kind of its default: counts and dictionaries of them are summed, histograms
merged, of other numbers (the longest times) the greatest stays, and an optional struct is the sum of those that are there.

What a struct names in ``not_added`` (its gauges) keeps its default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any, TypeVar

import msgspec

from asyncli.core.histogram import Histogram, summed

_Counts = TypeVar("_Counts", bound=msgspec.Struct)


def added_up(first: _Counts, *others: _Counts) -> _Counts:
    """All of them in one; they are left as they are."""
    parts, whole = (first, *others), type(first)()
    for name, how in summable(type(first)).items():
        setattr(whole, name, how([getattr(one, name) for one in parts]))
    return whole


@cache
def summable(kind: type[msgspec.Struct]) -> dict[str, Callable[[Sequence[Any]], Any]]:
    """The fields of ``kind`` that add up, and how."""
    empty, left_out = kind(), getattr(kind, "not_added", ())
    return {name: _how(getattr(empty, name)) for name in kind.__struct_fields__ if name not in left_out}


def _how(default: object) -> Callable[[Sequence[Any]], Any]:
    match default:
        case int():
            return sum
        case float():
            return max
        case Histogram():
            return summed
        case dict():
            return _by_key
    return _of_those_there


def _by_key(some: Sequence[dict[Any, Any]]) -> dict[Any, Any]:
    keys = dict.fromkeys(chain.from_iterable(some))
    return {key: _of_those_there([one.get(key) for one in some]) for key in keys}


def _of_those_there(some: Sequence[Any]) -> Any:
    there = [one for one in some if one is not None]
    if not there:
        return None
    return sum(there) if isinstance(there[0], int) else added_up(*there)
