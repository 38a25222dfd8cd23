"""Writes a page of metrics for Prometheus, by its own client library."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector


def page_of(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """The page of these ``families`` in the format that ``accept`` asks for, and its content
    type.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_AsCollector(families))
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):
        # The client names a version that is no number, on which the library stumbles.
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


class _AsCollector(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
