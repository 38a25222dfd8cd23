"""What a session is told by an agent is what it would read itself: no number of a status page is dropped on the way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from agents import AnAgent
from programs import SHORT, run, serving

from asyncli.collect import pages
from asyncli.collect.pages import parse_page
from asyncli.store.reader import read_run

sys.path.append(str(Path(__file__).parent.parent / "collect"))

from test_status_pages import EVENT, HAPROXY, NGINX, PREFORK


@pytest.mark.parametrize("page", [NGINX, PREFORK, EVENT, HAPROXY], ids=["nginx", "prefork", "event", "haproxy"])
def test_every_number_of_a_status_page_comes_through_an_agent(tmp_path: Path, page: str) -> None:
    """Apache's busy and idle workers and HAProxy's limit did not, so what they tell of a full server was never said."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page.encode())
    with serving(answer=answer) as server, AnAgent(tmp_path, "--status-url", server.url) as agent:
        soak = ("soak", server.url, "-c", "5", "--method", "GET", *SHORT, "--hold", "1s", "--agent", agent.url, "--out", "run.db")
        done = run(tmp_path, *soak, name="soak")
    assert done.status in (0, 4), done
    read = {name for sample in read_run(tmp_path / "run.db").samples for name in sample.values}
    assert read >= parse_page(page).values.keys()


def test_a_parser_cannot_give_what_is_no_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where this page does not tell it."""
    monkeypatch.delitem(pages._METRIC, "limit")
    with pytest.raises(KeyError, match="limit"):
        parse_page(HAPROXY.replace(",58,", ",,"))
