"""Sums structs of counts, field by field. The type of a field's default says how: counts and
dictionaries of counts are summed, histograms are merged, floats (longest times) keep the maximum,
and optional structs sum those that are present.

Fields that a struct lists in ``not_added`` (its gauges) keep their default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from asyncli.core.histogram import Histogram, summed

_Counts = TypeVar("_Counts", bound=msgspec.Struct)


def added_up(
    first: _Counts, *others: _Counts, known: Mapping[str, object] = MappingProxyType({})
) -> _Counts:
    """The sum of all arguments, which are not changed. ``known``: fields whose sum is known."""
    parts, whole = (first, *others), type(first)()
    for name, how in summable(type(first)).items():
        total = known.get(name)
        if total is None:
            total = how([getattr(part, name) for part in parts])
        setattr(whole, name, total)
    return whole


def copy_counts(source: _Counts, target: _Counts) -> None:
    """Set the fields of ``target`` that are summed to those of ``source``."""
    for name in summable(type(source)):
        setattr(target, name, getattr(source, name))


@cache
def summable(kind: type[msgspec.Struct]) -> dict[str, Callable[[Sequence[Any]], Any]]:
    """The fields of ``kind`` that are summed, each with the function that sums it."""
    empty, left_out = kind(), getattr(kind, "not_added", ())
    return {
        name: _how(getattr(empty, name)) for name in kind.__struct_fields__ if name not in left_out
    }


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
    return _present


def _by_key(some: Sequence[dict[Any, Any]]) -> dict[Any, Any]:
    keys = dict.fromkeys(chain.from_iterable(some))
    return {key: _present([part.get(key) for part in some]) for key in keys}


def _present(some: Sequence[Any]) -> Any:
    """The sum of those that are not None."""
    values = [part for part in some if part is not None]
    if not values:
        return None
    return sum(values) if isinstance(values[0], int) else added_up(*values)
