"""Samples for Prometheus, by its own client library. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from asyncli.model.metrics import METRICS, family_of


def exposition(values: Mapping[str, float], version: str, accept: str = "") -> tuple[bytes, str]:
    """The latest value of each known metric, in the format that ``accept`` asks for, and its
    content type.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfSamples(values, version))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _OfSamples(Collector):
    def __init__(self, values: Mapping[str, float], version: str) -> None:
        self._values = values
        self._version = version

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        about = GaugeMetricFamily(
            "asyncli_agent_info", "the agent that samples here", labels=["version"]
        )
        about.add_metric([self._version], 1.0)
        yield about
        families: dict[str, Metric] = {}
        for name, value in self._values.items():
            family = family_of(name)
            metric = METRICS.get(family or name)
            if metric is None or not metric.exposed:
                continue
            exposed = f"asyncli_{metric.exposed}"
            if exposed not in families:
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                labels = [metric.label] if family else []
                families[exposed] = kind(exposed, metric.about, labels=labels)
            label_values = [name.removeprefix(family)] if family else []
            families[exposed].add_metric(label_values, float(value))  # type: ignore[attr-defined]
        yield from families.values()
