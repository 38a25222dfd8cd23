"""Samples as Prometheus reads them: its text format 0.0.4 (prometheus.io, "Exposition formats"). Pure.

Written by hand, as it is these forty lines: a client library would bring a registry that the ring already is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from asyncli.records import METRICS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Counters that only rise while what they count lives; all else are gauges.
_COUNTERS = frozenset({
    "status.accepts", "status.handled", "status.requests", "status.polls", "status.unanswered", "status.connects", "server.ended",
    "server.cpu_s", "server.group_killed", "host.cpu_busy_s", "agent.cpu_s",
})  # fmt: skip
#: Families of METRICS, whose names end in a dot -> (metric, label).
_FAMILIES = {
    "kernel.slab.": ("kernel_slab_bytes", "cache"), "tcp.": ("tcp_events_total", "counter"), "probe.": ("probe_seconds", "probe"),
}  # fmt: skip
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


def exposition(values: Mapping[str, float], version: str) -> str:
    """The latest value of each metric; one of a name that cannot be a metric's there is left out."""
    groups: dict[str, list[str]] = {}
    heads: dict[str, str] = {}

    def put(name: str, kind: str, what: str, labels: str, value: float) -> None:
        if _NAME.match(name):
            heads[name] = f"# HELP {name} {_help(what)}\n# TYPE {name} {kind}\n"
            groups.setdefault(name, []).append(f"{name}{labels} {value!r}\n")

    put("asyncli_agent_info", "gauge", "the agent that samples here", f'{{version="{_label(version)}"}}', 1.0)
    for name, value in values.items():
        family = next((family for family in _FAMILIES if name.startswith(family)), None)
        if family is not None:
            metric, label = _FAMILIES[family]
            kind = "counter" if metric.endswith("_total") else "gauge"
            labels = f'{{{label}="{_label(name[len(family) :])}"}}'
            put(f"asyncli_{metric}", kind, METRICS[family], labels, float(value))
        elif name in METRICS:
            counter = name in _COUNTERS
            base = "asyncli_" + re.sub(r"_s\Z", "_seconds", name.replace(".", "_"))
            put(f"{base}_total" if counter else base, "counter" if counter else "gauge", METRICS[name], "", float(value))
    return "".join(heads[name] + "".join(lines) for name, lines in groups.items())


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
