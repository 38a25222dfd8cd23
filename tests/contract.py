"""The JSON keys that outside tools rely on: a document must have exactly these."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asyncli.model.run import Run
from asyncli.report.jsonout import to_json
from asyncli.report.summary import summarise

CAUSES = "*"  # keys that depend on what happened
COST = {"bytes_per_connection", "ci95", "fixed_bytes", "method", "points", "r2", "of_levels"}
CEILING = {"name", "connections", "ci95", "how"}
DRIFT = {
    "bytes_per_hour", "ci95", "p_value", "minutes", "verdict", "within_bytes_per_hour", "points", "bin_s", "from_s", "to_s",
    "level_bytes", "bytes_per_request", "metric", "bound_bytes_per_hour",
}  # fmt: skip
#: The keys of ``server.runtime``, which is absent where no runtime is known, as of nginx.
RUNTIME = {"kind", "version", "collected", "gogc", "heap_limit_bytes"}
#: The keys of a soak's JSON.
SOAK: dict[str, Any] = {
    "schema": None,
    "run": {"id": None, "started": None, "duration_s": None, "phases": [{"name": None, "start_s": None, "end_s": None}], "verdict": None, "complete": None, "stopped": None, "decided": None, "gaps": None},
    "plan": {
        "urls": None, "connections": None, "keepalive_s": None, "batch": None, "interval_s": None, "hold_s": None, "hold_until": None, "baseline_s": None, "residue_s": None,
        "plateaus": None, "plateau_s": None, "workers": None, "sources": None, "timeout_s": None, "connect_timeout_s": None, "status_url": None,
        "server_pid": None, "server_pidfile": None, "server_name": None, "agent": None, "agent_token_file": None, "agent_ca": None, "method": None, "headers": None, "first_beat": None, "reopen": None, "fail_if": None, "abort": None,
        "seed": None, "force": None,
    },
    "connections": {
        "requested": None, "opened": None, "established_peak": None, "held": None, "not_heard": None, "lost": None, "reopened": None, "failed": None,
        "failures": CAUSES, "deaths": CAUSES,
    },
    "ramp": {"asked_per_s": None, "achieved_per_s": None, "lateness_ms": {"p50": None, "p99": None, "max": None}},
    "heartbeats": {
        "sent": None, "answered": None, "failed": None, "by_status": CAUSES,
        "latency_ms": {"p50": None, "p90": None, "p99": None, "p999": None, "max": None},
        "lateness_ms": {"p50": None, "p99": None, "max": None},
    },
    "reconciliation": {
        "client_held": None, "server_active": None, "accepts_delta": None, "handled_delta": None, "requests_delta": None, "agrees": None, "divergences": None,
    },
    "server": {
        "processes": {"baseline": None, "hold_end": None}, "rss_bytes": {"baseline": None, "hold_end": None},
        "pss_bytes": {"baseline": None, "hold_end": None}, "cpu_s": {"baseline": None, "hold_end": None},
    },
    "cost": {**dict.fromkeys(("server_user", "kernel", "kernel_queued", "generator_user", "host_total", "residual"), COST), "ends": None},
    "residue": {"after_s", "server_user", "kernel", "host_total"},
    "forecast": {"memory": CEILING, "server_memory": CEILING, "ceilings": [CEILING], "first": None},
    "drift": dict.fromkeys(("server_user", "kernel", "generator_user", "host_total"), DRIFT),
    "diagnoses": None,
    "generator": {
        "processes": None, "user_bytes": None, "user_bytes_per_connection": None, "cpu_s": None, "cpu_us_per_heartbeat": None, "saturated": None,
    },
    "limits": None,
    "findings": [{"code": None, "severity": None, "evidence": None, "remedy": None, "fields": None}],
    "environment": None,
}  # fmt: skip
_TIMES = {"min", "mean", "sd", "median", "max"}
_SPENT = {"cpu_s", "user_s", "system_s", "cpu_us_per_request", "cores"}
#: The keys of a bench's JSON.
BENCH: dict[str, Any] = {
    "schema": None, "verdict": None, "why": None, "started": None, "duration_s": None, "complete": None,
    "plan": {
        "urls": None, "connections": None, "requests": None, "duration_s": None, "rate": None, "pipeline": None, "short": None,
        "method": None, "headers": None, "body": None, "workers": None, "sources": None, "timeout_s": None,
        "connect_timeout_s": None, "status_url": None, "server_pid": None, "server_pidfile": None, "server_name": None,
        "fail_if": None, "seed": None, "force": None,
    },
    "workers": None,
    "requests": {
        "total": None, "per_s": None, "failed": None, "keepalive": None, "failures": CAUSES, "by_status": CAUSES,
        "by_url": CAUSES, "other_length": None, "resent": None, "queued": None, "in_flight": None, "overdue": None, "left": None,
    },
    "latency_ms": {"p50", "p90", "p99", "p999", "max"},
    "times_ms": dict.fromkeys(("connect", "waiting", "processing", "total"), _TIMES),
    "percentiles_ms": {"50", "66", "75", "80", "90", "95", "98", "99", "99.9", "100"},
    "lateness_ms": {"p50", "p99", "max"},
    "connections": {"opened": None, "failed": None, "failures": CAUSES, "ended": CAUSES, "requests_each": None},
    "bytes": None,
    "generator": _SPENT,
    "server": _SPENT,
    "host": {"cpus": None, "busy_cores": None, "others_cores": None, "others": None},
    "findings": None,
    "environment": None,
    "transfer": {"received", "bodies", "sent"},
}  # fmt: skip
#: Keys that the environment must have.
ENVIRONMENT = {"kernel", "python", "asyncli", "server", "limits", "sysctls", "cpus", "memory_bytes"}


def parse(text: str) -> Any:
    """Load JSON; NaN and Infinity are none."""
    return json.loads(text, parse_constant=pytest.fail)


def document(run: Run) -> dict[str, Any]:
    """The JSON of ``asyncli report RUN --json -``."""
    return parse(to_json(summarise(run)))


#: Keys that may be absent.
OPTIONAL = {".server": {"file_bytes"}, ".limits": {"against", "not_judged"}, ".limits.against": {"left_out"}}


def keys_match(document: Any, keys: Any, *, whole: bool = True, where: str = "") -> None:
    """Fail unless the document has exactly these keys, at all levels.

    ``whole``: no object or list may be null, and no list empty. The objects that sets describe may always be null.
    """
    if document is None and not (whole and isinstance(keys, dict | list)):
        return
    if isinstance(keys, dict):
        assert isinstance(document, dict), where
        assert set(document) - OPTIONAL.get(where, set()) == set(keys), where
        for key, below in keys.items():
            keys_match(document[key], below, whole=whole, where=f"{where}.{key}")
    elif isinstance(keys, list):
        assert document or not whole, where
        for one in document:
            keys_match(one, keys[0], whole=whole, where=where)
    elif isinstance(keys, set):
        assert set(document) == keys, where
