"""A soak of a server whose metrics no rule names: the one that counts its connections is found by its values."""

from __future__ import annotations

from pathlib import Path

from programs import here, report, require_whole, serving_by

ROW = 'myapp_ws_open{pool="a"}'


def test_the_gauge_of_an_unknown_program_is_found(tmp_path: Path) -> None:
    with serving_by(Path(__file__).with_name("odd_names_server.py")) as port:
        url = f"http://127.0.0.1:{port}/"
        phases = ("--baseline", "3s", "--ramp", "20/s", "--hold", "6s", "--residue", "2s")
        done = here(tmp_path, "soak", url, "-c", "200", *phases, "-k", "4", "--server-metrics", f"{url}metrics", "--out", "run.db")
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    counts = summary["reconciliation"]
    assert counts["source"] == {"url": f"{url}metrics", "metric": ROW}
    assert (counts["agrees"], counts["client_held"], counts["server_active"], counts["divergences"]) == (True, 200, 200, [])
    (finding,) = [finding for finding in summary["findings"] if finding["code"] == "counted_by_values"]
    # Our own reading of the page is one of its connections.
    assert (finding["severity"], finding["fields"]["before"]) == ("info", 1)
    assert f"--metrics-map 'active={ROW}'" in finding["remedy"]
    assert ROW in " ".join(done.out.split())


def test_the_flag_that_the_finding_gives_names_the_same_count(tmp_path: Path) -> None:
    with serving_by(Path(__file__).with_name("odd_names_server.py")) as port:
        url = f"http://127.0.0.1:{port}/"
        phases = ("--baseline", "1s", "--ramp", "100/s", "--hold", "2s", "--residue", "1s", "--metrics-map", f"active={ROW}")
        done = here(tmp_path, "soak", url, "-c", "200", *phases, "-k", "4", "--server-metrics", f"{url}metrics", "--out", "run.db")
    summary = report(tmp_path, "run.db")
    require_whole(done.status, summary)
    counts = summary["reconciliation"]
    assert (counts["agrees"], counts["server_active"]) == (True, 200)
