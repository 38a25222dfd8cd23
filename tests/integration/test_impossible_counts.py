"""A status page whose counts no server can have: it is refused, and divides nothing."""

from __future__ import annotations

from pathlib import Path

from contract import document
from fault_table import require_as_written
from programs import SHORT, Program, held, recorded, serving, told

N = 40
_PAGE = "Active connections: {0} \nserver accepts handled requests\n {0} {0} {0} \nReading: 0 Writing: 1 Waiting: 0 \n"


def test_a_page_that_counts_more_connections_than_there_can_be(tmp_path: Path) -> None:
    holder = []

    def page(number: int) -> bytes:
        # It is right until all are held.
        count = holder[0].accepts + 1 if holder and number < 4 else 2**64 - 1
        text = _PAGE.format(count)
        return f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()

    with serving() as server, serving(page) as status:
        holder.append(server)
        asked = ["soak", server.url, *SHORT, "-c", str(N), "--status-url", status.url, "--hold", "forever", "--out", "run.db"]
        with Program(tmp_path, *asked) as program:
            program.until(lambda: held(tmp_path) == N and "status_lost" in told(tmp_path), "the page is refused")
            program.signal()
            program.wait()
    run = recorded(tmp_path / "run.db")
    assert max(run.series("status.active").values) <= N + 2
    summary = document(run)
    require_as_written("test_a_page_that_counts_more_connections_than_there_can_be", summary)
    for cost in summary["cost"].values():
        assert not isinstance(cost, dict) or cost["ci95"][0] < cost["ci95"][1]
