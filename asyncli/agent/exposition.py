"""Samples for Prometheus, by its own client library. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from asyncli.model.metrics import METRICS, family_of
from asyncli.web.exposition import page_of


def exposition(values: Mapping[str, float], version: str, accept: str = "") -> tuple[bytes, str]:
    """The latest value of each known metric, in the format that ``accept`` asks for, and its
    content type.
    """
    return page_of(_families(values, version), accept)


def _families(values: Mapping[str, float], version: str) -> Iterator[Metric]:
    about = GaugeMetricFamily(
        "asyncli_agent_info", "the agent that samples here", labels=["version"]
    )
    about.add_metric([version], 1.0)
    yield about
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for name, value in values.items():
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
        families[exposed].add_metric(label_values, float(value))
    yield from families.values()
