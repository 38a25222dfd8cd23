"""A server that has memory for its connections in advance: touched before it listens, or taken as one with the first of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from contract import document
from fault_table import require_as_written
from programs import Program, recorded, serving_by

pytestmark = pytest.mark.measures

EACH, CONNECTIONS = 50_000, 400
def soaked(folder: Path, when: str) -> dict[str, Any]:
    """The JSON of a soak of that server, whose cost must reach to what each connection uses."""
    with serving_by(Path(__file__).with_name("bare_server.py"), when, EACH, 2 * CONNECTIONS) as port:
        asked = ["soak", f"http://127.0.0.1:{port}/", "-c", str(CONNECTIONS), "-k", "4", "--ramp", "40/s", "--hold", "6"]
        asked += ["--baseline", "2", "--residue", "0.2", "--out", "run.db"]
        with Program(folder, *asked) as program:
            program.wait()
    summary = document(recorded(folder / "run.db"))
    low, high = summary["cost"]["server_user"]["ci95"]
    assert low < EACH < high, summary["cost"]["server_user"]
    assert "earlier_memory" in {ceiling["name"] for ceiling in summary["forecast"]["ceilings"]}
    return summary


def test_the_cost_reaches_to_the_memory_that_it_had(tmp_path: Path) -> None:
    require_as_written("test_the_cost_reaches_to_the_memory_that_it_had", soaked(tmp_path, "before"))


def test_the_cost_reaches_to_what_came_with_the_first(tmp_path: Path) -> None:
    require_as_written("test_the_cost_reaches_to_what_came_with_the_first", soaked(tmp_path, "with the first"))
