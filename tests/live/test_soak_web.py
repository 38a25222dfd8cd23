"""``asyncli soak --web`` on a real nginx: the page's figures are those of the file, a mark is in the run, and a stop drains and reports."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from programs import DEADLINE_S, Program, here, recorded, report, require_whole, until
from provoked import an_nginx
from recording import write_run
from synthetic_run import a_run

from asyncli.cli import web_options
from asyncli.findings.run import BY_PAGE
from asyncli.live.beside_soak import PageBeside
from asyncli.live.serve import ServedAt
from asyncli.model.records import STOPPED

HELD = 200
PACE = ["-c", str(HELD), "--ramp", "100/s", "-k", "4", "--hold", "forever", "--baseline", "0.5", "--residue", "0.2"]


def ask(url: str, *, token: str = "", body: bytes | None = None) -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, data=body, headers=headers), timeout=DEADLINE_S) as answer:
        return json.load(answer)


def page_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        return str(answer.read().decode())


def state(page: str) -> dict[str, Any]:
    try:
        return dict(ask(f"{page}history")["state"])
    except urllib.error.URLError:
        return {}


def test_a_run_is_watched_marked_and_ended_by_its_page(tmp_path: Path) -> None:
    with an_nginx() as server:
        where = ["--status-url", str(server.status_url), "--server-pid", str(server.pid), "--reference", "other.db"]
        write_run(a_run(200, hold_s=5.0), tmp_path / "other.db")
        with Program(tmp_path, "soak", server.url, *PACE, *where, "--web", "127.0.0.1:0", "--out", "run.db") as program:
            match = until(lambda: re.search(r"(http://\S+/)#token=(\S+)", program.out + program.err), "the page's address")
            page, token = match[1], match[2]
            until(lambda: state(page).get("phase") == "hold", "the hold")
            until(lambda: state(page).get("active") == HELD, "the server's count")
            event = ask(f"{page}mark", token=token, body=b"deploy 1.4")
            # On a busy host the seconds come late.
            until(lambda: len(ask(f"{page}history")["recent"]["rows"]) > 6, "seconds of the hold")
            document = ask(f"{page}history")
            assert [one["text"] for one in document["state"]["events"]] == ["deploy 1.4"]
            assert document["can_stop"] is True
            assert document["reference"]["file"] == "other.db"
            assert document["state"]["generator"]["limits"]
            with urllib.request.urlopen(f"{page}events", timeout=DEADLINE_S) as stream:
                assert ask(f"{page}stop", token=token, body=b"") == {"stopping": True}
                last = [json.loads(line.removeprefix(b"data: ")) for line in stream if line.startswith(b"data: ")][-1]
            status = program.wait().status
            require_whole(status, summary := report(tmp_path, "run.db"))
            # Who looks gets the verdict before the page ends with the soak.
            assert last["state"]["ending"]["verdict"] == summary["run"]["verdict"]
    run = recorded(tmp_path / "run.db")
    assert run is not None
    assert run.complete
    (marked,) = run.events
    assert (marked.text, marked.at_s) == ("deploy 1.4", event["at_s"])
    # Each second that was shown is the file's.
    keys = [line["key"] for panel in document["layout"]["panels"] for line in panel["lines"]]
    shown = {row[0]: dict(zip(keys, row[1:], strict=True)) for row in document["recent"]["rows"]}
    ticks = {float(int(t_s)): tick for t_s, tick in run.ticks}
    # Of the last second only the sample may have been written.
    seconds = [second for second in shown if second in ticks and shown[second]["held"] is not None]
    assert len(seconds) >= 4
    for second in seconds:
        assert (shown[second]["held"], shown[second]["sent"]) == (ticks[second].held, ticks[second].sent)
    # Its own process is not among other programs, and ends with the run.
    summary = json.loads(here(tmp_path, "report", "run.db", "--json", "-").out)
    assert "other_programs" not in {finding["code"] for finding in summary["findings"]}
    until(lambda: not state(page), "the page's end")


def test_a_hold_that_was_ended_on_the_page_says_so(tmp_path: Path) -> None:
    options = [*PACE, "--hold", "1h", "--web", "127.0.0.1:0", "--out", "run.db"]
    with an_nginx() as server, Program(tmp_path, "soak", server.url, *options) as program:
        match = until(lambda: re.search(r"(http://\S+/)#token=(\S+)", program.out + program.err), "the page's address")
        until(lambda: state(match[1]).get("phase") == "hold", "the hold")
        assert ask(f"{match[1]}stop", token=match[2], body=b"") == {"stopping": True}
        program.wait()
    run = recorded(tmp_path / "run.db")
    assert run is not None
    assert [finding.fields["by"] for finding in run.findings if finding.code == STOPPED] == [BY_PAGE]


def test_metrics_stay_for_a_while_after_the_run(tmp_path: Path) -> None:
    with an_nginx() as server:
        pace = [*PACE, "--hold", "1"]
        with Program(
            tmp_path, "soak", server.url, *pace, "--metrics", "127.0.0.1:0", "--metrics-linger", "60s", "--out", "run.db"
        ) as program:
            match = until(lambda: re.search(r"metrics: (http://\S+)", program.out + program.err), "the address")
            require_whole(program.wait().status, report(tmp_path, "run.db"))
            until(lambda: "asyncli_run_over 1.0" in page_of(match[1]), "the run's end")


def test_a_page_that_lingers_does_nothing_meanwhile(tmp_path: Path) -> None:
    path = write_run(a_run(200, hold_s=5.0), tmp_path / "run.db")
    place = ServedAt("127.0.0.1", 0, "a-token-of-the-tests", must_have_token=False, linger_s=30.0)
    page = PageBeside(path, place)
    page.start()
    # As the soak writes it.
    path.touch()
    (pid,) = page.pids
    process = psutil.Process(pid)
    try:
        page.close()

        def is_idle() -> bool:
            before_s = sum(process.cpu_times()[:2])
            time.sleep(2.0)
            return sum(process.cpu_times()[:2]) - before_s < 0.5

        # It computes the cost once, on a busy machine some seconds later.
        until(is_idle, "it does nothing")
    finally:
        process.terminate()


def test_a_wrong_address_is_one_line(tmp_path: Path) -> None:
    cases = {
        ("--web", "http://127.0.0.1:1/"): "--web: 'http://127.0.0.1:1/' is not an address",
        ("--web", "::1"): "--web: '::1' is not an address",
        ("--metrics", "127.0.0.1:1", "--web", "127.0.0.1:2"): "--metrics:",
        ("--metrics-linger", "3s"): "--metrics-linger:",
        ("--web-cert", "cert.pem"): "--web-cert:",
    }
    for options, complaint in cases.items():
        done = here(tmp_path, "soak", "http://127.0.0.1:9/", *options)
        assert done.status == 2
        assert done.err.count("\n") == 1
        assert complaint in done.err


def test_a_light_installation_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_options, "_NEEDED", ("no_such_module",))
    done = here(tmp_path, "soak", "http://127.0.0.1:9/", "--metrics", "127.0.0.1:0")
    assert done.status == 2
    assert "prometheus-client" in done.err
