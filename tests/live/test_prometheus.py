"""A real Prometheus scrapes a real soak: what the dashboard and the alerts ask for is what the soak says."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from programs import DEADLINE_S, Program, until
from provoked import an_nginx

from asyncli.core.life import DEATHS, FAILURES
from asyncli.lab.ports import free_pair

CONFIGS = Path(__file__).parents[2] / "configs" / "grafana"
HELD = 300


def found(name: str) -> str:
    binary = shutil.which(name)
    if binary is None:
        if os.environ.get("ASYNCLI_REQUIRE_PROMETHEUS"):
            pytest.fail(f"no {name} (ASYNCLI_REQUIRE_PROMETHEUS is set)", pytrace=False)
        pytest.skip(f"no {name} on this host; apt-get install prometheus")
    return binary


def expressions() -> list[str]:
    """What the dashboard asks for, with its variable filled in, and what the alerts do."""
    panels = json.loads((CONFIGS / "dashboard.json").read_text())["panels"]
    asked = [target["expr"].replace("$instance", ".*") for panel in panels for target in panel.get("targets", ())]
    alerts = re.findall(r"^ +expr: (.*)$", (CONFIGS / "alerts.yml").read_text(), re.MULTILINE)
    assert len(asked) > 20
    assert len(alerts) >= 8
    return asked + alerts


def test_the_files_are_valid() -> None:
    for what, file in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        done = subprocess.run([found("promtool"), "check", what, file], cwd=CONFIGS, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    rules = Path(__file__).with_name("alert_rules.yml")
    done = subprocess.run([found("promtool"), "test", "rules", rules.name], cwd=rules.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def ask(port: int, query: str) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        document = json.load(answer)
    assert document["status"] == "success"
    return list(document["data"]["result"])


def values(port: int, query: str) -> list[float]:
    return [float(row["value"][1]) for row in ask(port, query)]


def answers(port: int) -> bool:
    try:
        return values(port, "vector(1)") == [1.0]
    except OSError:
        return False


def test_a_real_prometheus_gets_what_the_soak_says(tmp_path: Path) -> None:
    binary = found("prometheus")
    ours, port = free_pair("127.0.0.1")
    (tmp_path / "prometheus.yml").write_text(
        f"global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: asyncli, static_configs: [{{targets: ['127.0.0.1:{ours}']}}]}}]\n"
    )
    options = [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={tmp_path}/data", "--log.level=error"]
    prometheus = subprocess.Popen([binary, f"--config.file={tmp_path}/prometheus.yml", *options], cwd=tmp_path)
    try:
        with an_nginx() as server:
            pace = ["-c", str(HELD), "--ramp", "100/s", "-k", "4", "--hold", "forever", "--baseline", "0.5", "--residue", "0.2"]
            where = ["--status-url", str(server.status_url), "--server-pid", str(server.pid), "--fail-if", "lost > 1%"]
            with Program(
                tmp_path, "soak", server.url, *pace, *where, "--metrics", f"127.0.0.1:{ours}", "--out", "run.db"
            ) as program:
                until(lambda: answers(port), "Prometheus answers")
                until(lambda: values(port, "asyncli_connections_held") == [HELD], "it has what is held")
                page = urllib.request.urlopen(f"http://127.0.0.1:{ours}/metrics", timeout=DEADLINE_S).read()
                checked = subprocess.run([found("promtool"), "check", "metrics"], input=page, capture_output=True, check=False)
                assert checked.returncode == 0, checked.stdout + checked.stderr

                def has(query: str, wanted: float) -> None:
                    # A scrape may take a second at most: of one that took longer on a busy machine Prometheus has no values.
                    until(lambda: values(port, query) == [wanted], f"{query} is {wanted}")

                has('asyncli_phase{phase="hold"}', 1.0)
                has("asyncli_server_connections", HELD)
                has("asyncli_connections_opened_total", HELD)
                # Each cause has been 0, so that its first losses are a rise.
                until(lambda: causes(port, "asyncli_connections_lost_total") == dict.fromkeys(DEATHS, 0), "each cause of a loss is 0")
                until(lambda: causes(port, "asyncli_connects_failed_total") == dict.fromkeys(FAILURES, 0), "each cause of a failure is 0")
                # It has no end.
                has("asyncli_hold_left_seconds", float("inf"))
                has("asyncli_connections_away", 0)
                has("asyncli_limit_bound", 0.01 * HELD)
                for expression in expressions():
                    ask(port, expression)
                for name in ("asyncli_heartbeats_answered_total", "asyncli_heartbeat_latency_seconds_count"):
                    until(lambda name=name: total(port, name) > 0, f"{name} rises")
                os.kill(a_worker_of(server.pid), signal.SIGKILL)
                (lost,) = [one for one in expressions() if one.startswith("sum by (instance) (last_over_time(asyncli_connections_lost")]
                until(lambda: values(port, lost), "the first losses are an alert")
                program.signal()
                program.wait()
    finally:
        prometheus.terminate()
        prometheus.wait(DEADLINE_S)


def causes(port: int, name: str) -> dict[str, float]:
    return {row["metric"]["cause"]: float(row["value"][1]) for row in ask(port, name)}


def a_worker_of(pid: int) -> int:
    """A worker of an nginx. Each has connections."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def total(port: int, name: str) -> float:
    return sum(values(port, name))
