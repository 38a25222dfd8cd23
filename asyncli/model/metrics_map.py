"""Which metric of a server's page counts connections, as ``--metrics-map`` names it. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from asyncli.model import metrics
from asyncli.model.prometheus_labels import parse_labels
from asyncli.model.units import shown
from asyncli.model.values import parse_text

#: What a metric may be named for, and the metric of asyncli's that it becomes.
MAPPED = {
    "active": metrics.STATUS_ACTIVE,
    "accepts": metrics.STATUS_ACCEPTS,
    "requests": metrics.STATUS_REQUESTS,
    "live": metrics.RUNTIME_LIVE_BYTES,
    "heap": metrics.RUNTIME_HEAP_BYTES,
}
# A name of Prometheus, or a dotted one of JSON.
_MAPPED = re.compile(
    r"(?P<meaning>[a-z]++)=(?P<name>[^\s{}\"=,]{1,200}+)(?:\{(?P<labels>[^\n]{0,1000})\})?"
)
_EXAMPLE = 'write active=NAME or active=NAME{label="x"}'


class MappedMetric(NamedTuple):
    """``meaning``: a key of :data:`MAPPED`; ``labels``: those that a row must have."""

    meaning: str
    name: str
    labels: dict[str, str]


def mapped_metric(text: str) -> MappedMetric:
    """Parse ``active=NAME{label="x"}``. ``ValueError`` says what is wrong."""
    match = _MAPPED.fullmatch(text)
    if match is None and text.count("{") > text.count("}"):
        raise ValueError(f"{shown(text)} has an open brace; {_EXAMPLE}")
    if match is None:
        raise ValueError(f"{shown(text)} names no metric; {_EXAMPLE}")
    if match["meaning"] not in MAPPED:
        raise ValueError(
            f"{shown(match['meaning'])} is not known; write one of {', '.join(MAPPED)}"
        )
    return MappedMetric(match["meaning"], match["name"], _labels(match["labels"] or ""))


def _labels(text: str) -> dict[str, str]:
    labels = parse_labels(text)
    if labels is None:
        raise ValueError(f"{shown(text)} are no labels; {_EXAMPLE}")
    return labels


def parse_metrics_map(value: object) -> str:
    """Check a text for :func:`mapped_metric`."""
    text = parse_text(value).strip()
    mapped_metric(text)
    return text
