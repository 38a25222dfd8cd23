"""The notebooks run from top to bottom, and say numbers; and those that are committed carry what they said when they ran."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recording import write_run
from synthetic_run import a_run

import asyncli

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = Path(__file__).parent.parent.parent / "notebooks"
NAMES = ("memory_per_connection", "compare_two_runs")
# A sixth to a third of the connections say as much, in ramps as long. TLS handshakes at 200 a second would take a core of a busy machine.
FEWER = {
    'many="2k", ramp="20/100ms"': 'many="1k", ramp="10/100ms"', '"6k"': '"1k"', '"30/100ms"': '"15/100ms"',
    'connections="10k", ramp="20': 'connections="3k", ramp="6', "10k": "3k",
}  # fmt: skip
# Half a minute and three quarters of one on a machine with nothing else to do.
DEADLINE_S = 240


def read(name: str) -> Any:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def code_of(book: Any) -> Iterator[Any]:
    yield from (cell for cell in book.cells if cell.cell_type == "code" and cell.source.strip())


def said(cell: Any) -> str:
    """All text that a cell's outputs say."""
    parts = []
    for output in cell.outputs:
        parts.append(output.get("text", ""))
        parts += [str(data) for kind, data in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(parts)


@pytest.mark.parametrize("name", ["memory.ipynb", "no/such.ipynb"])
def test_a_notebook_that_is_not_there_is_one_line(name: str) -> None:
    script = NOTEBOOKS.parent / "scripts" / "notebooks"
    done = subprocess.run([sys.executable, script, name], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert (done.stderr.count("\n"), f" {name}: " in done.stderr, all(one in done.stderr for one in NAMES)) == (1, True, True)


def require_whole(book: Any) -> None:
    for cell in code_of(book):
        assert cell.execution_count, cell.source
        assert not [output for output in cell.outputs if output.output_type == "error"], cell.source
        # What a soak shows of itself changes in place.
        assert len(cell.outputs) <= 3, cell.source
        assert not re.search(r"\bnan\b|Traceback|stderr", said(cell).replace("NaN</td>", "")), said(cell)
    assert " connection costs " in "\n".join(map(said, code_of(book)))


@pytest.mark.nginx
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    book = read(name)
    for cell in code_of(book):
        for asked, less in FEWER.items():
            cell.source = cell.source.replace(asked, less)
        cell.outputs, cell.execution_count = [], None
    client = nbclient.NotebookClient(book, timeout=DEADLINE_S, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    require_whole(book)
    pictures = [output for cell in code_of(book) for output in cell.outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= {"memory_per_connection": 3, "compare_two_runs": 1}[name]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".db"] * {"memory_per_connection": 1, "compare_two_runs": 4}[name]
    for path in tmp_path.iterdir():
        run = asyncli.load(path)
        connections = run.summary.connections
        assert (connections.held, connections.lost) == (connections.requested, 0), (connections, run.summary.findings)
        # Beside other tests it may have been late, which makes a run invalid and its counts no less exact.
        assert run.verdict == "passed" or run.frames.findings["code"].str.startswith("generator_saturated_").any(), run.verdict
        # What nginx takes for one connection is its request pool and buffers: some hundred bytes, on any machine; with TLS OpenSSL's too.
        cost = run.summary.cost.server_user
        least, most = (10_000, 20_000) if run.plan.tls else (100, 5_000)
        assert cost.ci95[0] < most, cost
        assert cost.ci95[1] > least, cost
    assert " in nginx" in "\n".join(map(said, code_of(book)))


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_notebook_shows_what_it_said(name: str) -> None:
    book = read(name)
    nbformat.validate(book)
    require_whole(book)
    assert "passed: " in "\n".join(map(said, code_of(book)))
    counts = [cell.execution_count for cell in code_of(book)]
    assert counts == list(range(1, len(counts) + 1)), "run it from top to bottom before committing it"
    text = (NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8")
    assert not re.search(r"/root/|/home/|/tmp/|/work/|/Users/", text), "a path of the machine that ran it"
    assert len(text) < 1_500_000


def test_a_cell_shows_each_figure_that_it_makes_once(tmp_path: Path) -> None:
    write_run(a_run(500, hold_s=5.0), tmp_path / "run.db")
    cells = [
        "import asyncli; run = asyncli.load('run.db')",
        "run.plot.cost(); run.plot.timeline()",
        "figure = run.plot.cost()\nrun.plot.timeline()\nprint('done')",
        "run.plot.cost()",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, timeout=DEADLINE_S, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [["image/png" for output in cell.outputs if "image/png" in output.get("data", {})] for cell in book.cells]
    assert list(map(len, shown)) == [0, 2, 2, 1]
