"""Samples in Prometheus's text format 0.0.4 (prometheus.io, "Exposition formats"). Pure."""

from __future__ import annotations

from collections.abc import Mapping

from asyncli.model.metrics import METRICS, family_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(values: Mapping[str, float], version: str) -> str:
    """The latest value of each known metric."""
    groups: dict[str, list[str]] = {}
    heads: dict[str, str] = {}

    def put(name: str, kind: str, what: str, labels: str, value: float) -> None:
        heads[name] = f"# HELP {name} {what}\n# TYPE {name} {kind}\n"
        groups.setdefault(name, []).append(f"{name}{labels} {value!r}\n")

    put(
        "asyncli_agent_info",
        "gauge",
        "the agent that samples here",
        f'{{version="{_label(version)}"}}',
        1.0,
    )
    for name, value in values.items():
        family = family_of(name)
        metric = METRICS.get(family or name)
        if metric is not None and metric.exposed:
            labels = ""
            if family:
                member = _label(name[len(family) :])
                labels = f'{{{metric.label}="{member}"}}'
            put(f"asyncli_{metric.exposed}", metric.kind, metric.about, labels, float(value))
    return "".join(heads[name] + "".join(lines) for name, lines in groups.items())


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
