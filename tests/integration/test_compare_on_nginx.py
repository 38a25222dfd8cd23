"""Two configurations of the real nginx that really differ, and two runs of the same: compared from their run files."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from programs import SHORT, run

from asyncli.cli.compare import command as compare
from asyncli.cli.runs import command as runs
from asyncli.lab.nginx import LabNginx

pytestmark = [pytest.mark.nginx, pytest.mark.measures]

CONNECTIONS = 3000
#: nginx's own default on 64 bits, and a page: each connection then touches one of its own.
SMALL, LARGE = 512, 4096


class Tuned(LabNginx):
    """The lab's nginx with ``connection_pool_size`` set: memory that it takes for each connection, and keeps while it idles."""

    def __init__(self, pool: int) -> None:
        super().__init__(connections=CONNECTIONS, workers=2)
        self._pool = pool

    def _config(self) -> str:
        text = super()._config()
        assert text.count("access_log off;") == 1
        return text.replace("access_log off;", f"access_log off;\n    connection_pool_size {self._pool};")


def soaked(folder: Path, name: str, pool: int) -> Path:
    """A soak of some ten seconds on an nginx of its own."""
    with asyncio.Runner() as runner:
        server = Tuned(pool)
        runner.run(server.start())
        try:
            asked = ["-c", str(CONNECTIONS), "--ramp", "30/80ms", "--hold", "5s", "--status-url", server.status_url]
            asked += ["--server-pid", str(server.pid), "--out", name, "--quiet"]
            done = run(folder, "soak", server.url, *SHORT, "--baseline", "1", *asked)
        finally:
            runner.run(server.stop())
    assert (done.status, done.err) == (0, "")
    return folder / name


def invoked(command: Any, *arguments: str | Path) -> str:
    result = CliRunner().invoke(command, [str(one) for one in arguments], standalone_mode=False, catch_exceptions=False)
    assert result.return_value == 0
    return result.stdout


def test_a_configuration_that_costs_more_is_told_from_a_repeat(tmp_path: Path) -> None:
    first, again, dearer = (
        soaked(tmp_path, name, pool) for name, pool in (("first.db", SMALL), ("again.db", SMALL), ("dearer.db", LARGE))
    )
    document = json.loads(invoked(compare, first, again, dearer, "--json", "-"))
    rows = {(one["key"], one["between"][1]): one for one in document["differences"]}

    # The same configuration again: of what belongs to this server alone nothing is called different.
    for key in ("cost.server_user", "fixed.server_user", "memory.server_hold_end", "lost", "reopened", "failed"):
        assert rows[key, "B"]["verdict"] == "no_difference", rows[key, "B"]

    # The larger pools: higher, by about as many bytes as the pool is larger.
    cost = rows["cost.server_user", "C"]
    assert cost["verdict"] == "higher", cost
    low, high = cost["ci95"]
    assert 0.5 * (LARGE - SMALL) < low < high < 1.5 * (LARGE - SMALL), cost
    total = rows["memory.server_hold_end", "C"]
    assert total["verdict"] == "higher", total
    assert total["difference"] == pytest.approx(CONNECTIONS * cost["difference"], rel=0.2)
    assert rows["lost", "C"]["verdict"] == "no_difference"

    # It is the configuration that differs, and the report says so.
    differs = {one["key"]: one["values"] for one in document["differs"]}
    (pools,) = (values for key, values in differs.items() if key.endswith(" connection_pool_size"))
    assert pools == [str(SMALL), str(SMALL), str(LARGE)]
    assert not {"compare_plan", "compare_host", "compare_asyncli"} & {one["code"] for one in document["findings"]}
    text = " ".join(invoked(compare, first, dearer).split())
    assert re.search(r"memory per connection in the server: B is higher by [\d,]+ B", text)

    # And the folder's list has all three, the newest first.
    listed = json.loads(invoked(runs, tmp_path, "--json", "-"))
    assert [one["file"] for one in listed["runs"]] == ["dearer.db", "again.db", "first.db"]
    assert {(one["verdict"], one["held"]) for one in listed["runs"]} == {("passed", CONNECTIONS)}
