"""A stranger's run file: what a report costs is bounded by its rows, never by a value in it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from recording import write_run
from synthetic_run import a_run

FAR_S = 1e12
#: Each is bounded by a plan's parsers.
PLANS: dict[str, dict[str, Any]] = {
    "many batches": {"connections": 10_000_000, "batch": 1, "plateaus": 100, "plateau_s": 3e8},
    "many soon": {"connections": 10_000_000, "batch": 1, "interval_s": 1e-6},
    "long": {"hold_s": 3e8, "interval_s": 3e8, "keepalive_s": 3e8, "timeout_s": 3e8},
}
EDITS = {
    "drain": f"UPDATE phases SET start_s = {FAR_S} WHERE name = 'drain'",
    "hold": f"UPDATE phases SET start_s = {FAR_S}, end_s = {2 * FAR_S} WHERE name = 'hold'",
    "ramp": f"UPDATE phases SET start_s = {-FAR_S} WHERE name = 'ramp'",
    "tick": f"UPDATE ticks SET t_s = {FAR_S} WHERE rowid > 40",
    "sample": f"UPDATE samples SET t_s = t_s * {FAR_S} WHERE t_s > 20",
    "tiny": "UPDATE samples SET t_s = t_s * 1e-9",
    "gap": f"CREATE TABLE gaps (start_s REAL PRIMARY KEY, end_s REAL); INSERT INTO gaps VALUES (20, {FAR_S})",
}
#: Writes the report of each file, with as much memory as one of a run of a minute needs, and some.
REPORTS = """
import resource, sys
from pathlib import Path
from asyncli.app.results import read_results
results = read_results(sys.argv[1])
results.html()
used = 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1])
resource.setrlimit(resource.RLIMIT_AS, (used + 300_000_000,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
for path in sys.argv[2:]:
    results = read_results(path)
    print(Path(path).stem, results.summary.verdict, len(results.html()) > 10_000, flush=True)
"""


def test_a_report_costs_what_its_rows_cost(tmp_path: Path) -> None:
    write_run(a_run(1000, hold_s=40.0), first := tmp_path / "first.db")
    paths = []
    for name, change in {**EDITS, **PLANS}.items():
        paths.append(tmp_path / f"{name.replace(' ', '-')}.db")
        paths[-1].write_bytes(first.read_bytes())
        with closing(sqlite3.connect(paths[-1], isolation_level=None)) as connection:
            if isinstance(change, str):
                connection.executescript(change)
            else:
                (plan,) = connection.execute("SELECT value FROM meta WHERE key = 'plan'").fetchone()
                connection.execute("UPDATE meta SET value = ? WHERE key = 'plan'", (json.dumps(json.loads(plan) | change),))
    done = subprocess.run([sys.executable, "-c", REPORTS, first, *paths], capture_output=True, text=True, check=False)
    told = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert told.keys() == {path.stem for path in paths}, done.stderr[-500:]
    assert all(words.endswith("True") for words in told.values())
    assert done.returncode == 0
