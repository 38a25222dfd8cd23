"""What other programs do on this host is no evidence about the server."""

from __future__ import annotations

from pathlib import Path

from full_queue import overflowing
from programs import SHORT, codes, here, recorded, report, require_whole, serving


def test_a_full_listen_queue_of_another_program(tmp_path: Path) -> None:
    with overflowing(), serving() as server:
        done = here(tmp_path, "soak", server.url, *SHORT, "-c", "50", "--hold", "4", "--out", "run.db", "--quiet")
    run, summary = recorded(tmp_path / "run.db"), report(tmp_path, "run.db")
    require_whole(done.status, summary)
    assert run is not None
    for name in ("tcp.ListenOverflows", "tcp.RetransSegs"):
        counter = run.series(name).values
        assert counter[-1] - counter[0] >= 20, name
    assert not {"listen_overflows", "listen_drops", "packets_sent_again"} & codes(summary)
