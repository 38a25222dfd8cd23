"""Status pages with a login and at a Unix socket, of real servers; the login goes only there."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from programs import SHORT, here, report, require_whole
from provoked import an_nginx

from asyncli.model.plan import Plan
from asyncli.model.status_place import parse_status_url, status_place

pytestmark = pytest.mark.nginx
SECRET = "tiger-4711"


def test_a_login_is_sent_to_the_page_and_kept_nowhere(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"mon:{{PLAIN}}{SECRET}\n", encoding="ascii")
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    basic = base64.b64encode(f"mon:{SECRET}".encode()).decode()
    with an_nginx(replace={"stub_status;": f"stub_status; }} location = /login {{ stub_status; auth_basic x; auth_basic_user_file {users};"}) as server:
        page = f"http://127.0.0.1:{server.status_port}/login"
        soak = ("soak", server.url, *SHORT, "-c", "10", "--hold", "1s", "--json", "run.json", "--html", "run.html")
        refused = here(tmp_path, *soak, "--status-url", page)
        assert refused.status == 2
        assert "USER:PASSWORD" in refused.err
        by_url = here(tmp_path, *soak, "--status-url", page.replace("://", f"://mon:{SECRET}@"), "--out", "url.db")
        by_header = here(tmp_path, *soak, "--status-url", page, "--status-header", f"Authorization: Basic {basic}", "--out", "header.db")
        wrong = here(tmp_path, *soak, "--status-url", page.replace("://", f"://mon:{SECRET}-not@"))
    assert wrong.status == 2
    for done in (by_url, by_header, wrong):
        assert SECRET not in done.out + done.err
    for name, done in (("url.db", by_url), ("header.db", by_header)):
        summary = report(tmp_path, name)
        require_whole(done.status, summary)
        assert summary["reconciliation"]["agrees"] is True
        assert summary["reconciliation"]["server_active"] == 10
    kept = [path for path in tmp_path.iterdir() if path != users and path.is_file()]
    assert {"url.db", "header.db", "run.json", "run.html"} <= {path.name for path in kept}
    assert not [path for path in kept if SECRET.encode() in path.read_bytes() or basic.encode() in path.read_bytes()]


def test_a_page_at_a_unix_socket(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    with an_nginx(replace={"stub_status;": f"stub_status; }} }} server {{ listen unix:{tmp_path}/s; location = /page {{ stub_status;"}) as server:
        for number, written in enumerate((f"unix:{tmp_path}/s:/page", f"http://unix:{tmp_path}/s:/page")):
            name = f"{number}.db"
            done = here(tmp_path, "soak", server.url, *SHORT, "-c", "10", "--hold", "1s", "--status-url", written, "--out", name, "--quiet")
            summary = report(tmp_path, name)
            require_whole(done.status, summary)
            assert summary["reconciliation"]["agrees"] is True


@pytest.mark.parametrize(
    ("text", "url", "socket", "login"),
    [
        ("http://a:b@h:1/s;csv", "http://h:1/s;csv", "", "a:b"),
        ("https://a%40b:c%2Fd@h/s", "https://h/s", "", "a@b:c/d"),
        ("http://***@h/s", "http://h/s", "", None),
        ("unix:/run/s.sock", "http://localhost/", "/run/s.sock", None),
        ("unix:@name:/a?b", "http://localhost/a?b", "@name", None),
    ],
)
def test_where_a_page_is(text: str, url: str, socket: str, login: str | None) -> None:
    place = status_place(parse_status_url(text))
    assert (place.url, place.socket) == (url, socket)
    sent = [base64.b64decode(one.split()[-1]).decode() for one in place.headers]
    assert sent == ([] if login is None else [login])


@pytest.mark.parametrize("text", [f"http://{SECRET}@h/", f"http://a:{SECRET}@h:99999/", "unix:relative", "ftp://h/", "http:///"])
def test_a_wrong_place_is_named_without_its_login(text: str) -> None:
    with pytest.raises(ValueError, match="write") as caught:
        parse_status_url(text)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(Plan(urls=("http://a/",), status_url=f"http://a:{SECRET}@b/", status_headers=(f"X: {SECRET}",)))
