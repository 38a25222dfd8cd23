"""Refusals of agent and client: one line at each end, and nothing left running."""

from __future__ import annotations

import datetime
import json
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from agents import TOKEN, AnAgent, http, token_file
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Done, Server, complaint, here, report, serving, until

STATUS = b"Active connections: 1 \nserver accepts handled requests\n 1 1 1 \nReading: 0 Writing: 1 Waiting: 0 \n"
PAGE = b"HTTP/1.1 200 OK\r\nServer: nginx/1.0\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(STATUS), STATUS)
FEW = ("-c", "10", "--baseline", "0.2", "--residue", "0.2", "--keepalive", "2", "--hold", "0.2", "--interval", "1ms")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with nginx's Server header that answers every request with one status page."""
    with serving(answer=PAGE) as server:
        yield server


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[AnAgent]:
    """An agent without a token."""
    with AnAgent(tmp_path_factory.mktemp("agent"), "--status-url", server.url) as agent:
        yield agent


def soak(folder: Path, server: Server, url: str, *more: str | Path) -> Done:
    return here(folder, "soak", server.url, "--agent", url, *FEW, *more)


def test_a_token_that_is_wrong_or_missing(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong").write_text("another-token-of-the-tests")
    with AnAgent(tmp_path, "--status-url", server.url, "--token-file", token_file(tmp_path)) as there:
        assert str(tmp_path / "wrong") in complaint(soak(tmp_path, server, there.url, "--agent-token-file", tmp_path / "wrong"))
        assert "--agent-token-file" in complaint(soak(tmp_path, server, there.url))
        assert there.ask("/metrics")[0] == 401
        assert there.ask("/metrics", Authorization=f"Basic {TOKEN}")[0] == 401
        assert there.ask("/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
        there.until(lambda: there.err.count("refused 127.0.0.1: ") >= 2, "it logs so")
        # The token may be in the session's environment.
        monkeypatch.setenv("ASYNCLI_AGENT_TOKEN", TOKEN)
        assert soak(tmp_path, server, there.url, "--out", "run.db").err == ""
        assert report(tmp_path, "run.db")["connections"]["opened"] >= 10
        assert TOKEN not in there.err
        assert "another-token" not in there.err


def test_certificates(tmp_path: Path, server: Server, agent: AnAgent) -> None:
    assert "write http://" in complaint(soak(tmp_path, server, agent.url.replace("http", "https")))
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    other.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    authority.issue_cert("127.0.0.1", not_after=yesterday).private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "expired.pem"))
    authority.issue_cert("10.1.2.3").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "good.pem"))
    with AnAgent(tmp_path, "--status-url", server.url, "--tls-cert", tmp_path / "expired.pem", name="a") as there:
        assert "expired" in complaint(soak(tmp_path, server, there.url, "--agent-ca", tmp_path / "ca.pem"))
        assert "expired" in there.err
    with AnAgent(tmp_path, "--status-url", server.url, "--tls-cert", tmp_path / "good.pem", name="b") as there:
        assert "--agent-ca" in complaint(soak(tmp_path, server, there.url, "--agent-ca", tmp_path / "other.pem"))
        assert "warning" not in there.err
        assert "127.0.0.1'" in complaint(soak(tmp_path, server, there.url, "--agent-ca", tmp_path / "ca.pem"))
        assert "https://" in complaint(soak(tmp_path, server, there.url.replace("https", "http")))
        there.signal(signal.SIGSTOP)
        socket.create_connection(("127.0.0.1", there.port)).close()
        there.signal(signal.SIGCONT)
        there.until(lambda: "it closed during the handshake" in there.err, "who gave up is told so")


def test_another_version_is_refused_on_both_sides(tmp_path: Path, server: Server, agent: AnAgent) -> None:
    with serving(answer=http(json.dumps({"protocol": 2, "asyncli": "9.9", "more": []}).encode()), closes=True) as other:
        assert "'9.9'" in complaint(soak(tmp_path, server, other.url.rstrip("/")))
    status, body = agent.ask("/v1/hello", Asyncli_Protocol="2")
    assert status == 426
    assert b"asyncli 0." in body
    agent.until(lambda: "refused 127.0.0.1: " in agent.err, "it logs so")
    with serving(answer=http(json.dumps({"error": "another protocol"}).encode(), "426 Upgrade Required"), closes=True) as other:
        assert "another protocol" in complaint(soak(tmp_path, server, other.url.rstrip("/")))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (http(b"<html>"), "no Hello"),
        (http(b'{"protocol": 1, "asyncli": "0.1.0"}'), "no Hello"),
        (http(b"[" * 100_000), "no Hello"),
        (http(b'{"protocol": 1, "host": "\xff\xfe"}'), "no Hello"),
        (http(b'{"error": "\xff"}', "500 Oops"), "answers 500"),
        (http(b" " * 2_000_000), "its answer is longer"),
        (http(b"", "404 Not Found"), "answers 404"),
        (http(b"", "302 Found"), "answers 302"),
        (http(b'{"error": "\\u001b[2J"}', "500 Oops"), "refuses: ?[2J"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "does not speak HTTP"),
        (b"", "closed"),
    ],
)
def test_another_server_is_no_agent(tmp_path: Path, server: Server, answer: bytes, said: str) -> None:
    with serving(answer=answer, closes=True) as other:
        assert said in complaint(soak(tmp_path, server, other.url.rstrip("/")))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("LOCALHOST:9165", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("10.1.2.3:9165", 200),
        ("attacker.example", 403), ("attacker.example:9165", 403), ("127.0.0.1.attacker.example", 403), ("localhost.attacker.example:80", 403),
        ("", 403), (":80", 403),
    ],
)  # fmt: skip
def test_an_agent_without_a_token_answers_no_other_name(agent: AnAgent, host: str, status: int) -> None:
    """A page of another site reads nothing once its name resolves to loopback (DNS rebinding)."""
    until(lambda: agent.ask("/metrics", Host=host)[0] in (200, 403), "its rate allows it")
    assert agent.ask("/metrics", Host=host)[0] in (status, 429)


def test_what_is_no_request_is_answered_without_names(agent: AnAgent) -> None:
    port = int(agent.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"GET\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(4096), b"")).lower()
    assert b" 400 " in answer.partition(b"\r\n")[0]
    assert b"server: asyncli" in answer
    assert not re.search(b"aiohttp|python|llhttp", answer)


def test_an_agent_with_a_token_answers_under_any_name(tmp_path: Path, server: Server) -> None:
    with AnAgent(tmp_path, "--status-url", server.url, "--token-file", token_file(tmp_path)) as there:
        assert there.ask("/metrics", Host="agent.example", Authorization=f"Bearer {TOKEN}")[0] == 200


def test_no_agent_listens(tmp_path: Path, server: Server) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        for command in ("soak", "check", "capacity"):
            more = FEW if command == "soak" else ()
            done = here(tmp_path, command, server.url, "--agent", url, *more)
            assert (done.status, done.err.count("\n"), f"agent {url}: Connection refused; " in done.err) == (2, 1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "127.0.0.1:0"], "--status-url"),
        (["--server-name", "x", "--server-pid", "1"], "name the server once; leave out all but one"),
        (["--server-name", "nonesuch-of-the-tests"], "nonesuch-of-the-tests"),
        (["--server-pid", "x"], "--server-pid: 'x'"),
        (["--status-url", "ftp://127.0.0.1/"], "--status-url: 'ftp://127.0.0.1/'"),
        (["--status-url", "http://127.0.0.1:1/"], "(Connection refused)"),
        (["--status-url", "{url}", "--listen", "0.0.0.0:0"], "0.0.0.0 is"),
        (["--status-url", "{url}", "--listen", "[::]:0"], ":: is"),
        (["--status-url", "{url}", "--listen", "9165"], "'9165'"),
        (["--status-url", "{url}", "--listen", "nowhere.invalid:0"], "'nowhere.invalid'"),
        (["--status-url", "{url}", "--listen", "127.0.0.1:{port}"], "Address already"),
        (["--status-url", "{url}", "--token-file", "none"], "--token-file none: "),
        (["--status-url", "{url}", "--token-file", "short"], "--token-file short: "),
        (["--status-url", "{url}", "--token-file", "blank"], "--token-file blank: "),
        (["--status-url", "{url}", "--tls-key", "short"], "--tls-key: "),
        (["--status-url", "{url}", "--tls-cert", "none"], "--tls-cert none: "),
        (["--status-url", "{url}", "--tls-cert", "short"], "--tls-cert short: "),
    ],
)  # fmt: skip
def test_an_agent_that_cannot_start_prints_one_line(tmp_path: Path, server: Server, arguments: list[str], said: str) -> None:
    (tmp_path / "short").write_text("secret\n")
    (tmp_path / "blank").write_text("a token with blanks in it\n")
    line = complaint(here(tmp_path, "agent", *(one.format(url=server.url, port=server.port) for one in arguments)))
    assert said in line
    assert "secret" not in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--agent", "127.0.0.1:9165"], "http://HOST:9165"),
        (["--agent", "ftp://127.0.0.1"], "--agent: 'ftp://127.0.0.1'"),
        (["--agent", "http://127.0.0.1/x"], " path"),
        (["--agent", "https://127.0.0.1:0"], " port"),
        (["--agent", "http://127.0.0.1", "--status-url", "http://127.0.0.1/"], "--status-url: "),
        (["--agent", "http://127.0.0.1", "--server-name", "nginx"], "--server-name: "),
        (["--agent-ca", "x"], "--agent-ca: "),
        (["--agent", "https://127.0.0.1:1", "--agent-ca", "none"], "--agent-ca none: "),
        (["--agent", "https://127.0.0.1:1", "--agent-ca", "short"], "--agent-ca short: "),
        (["--agent", "http://127.0.0.1:1", "--agent-token-file", "short"], "--agent-token-file short: "),
    ],
)  # fmt: skip
def test_invalid_agent_flags_print_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "short").write_text("secret\n")
    assert said in complaint(here(tmp_path, "soak", "http://127.0.0.1:1/", *arguments))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(tmp_path: Path, server: Server, number: int) -> None:
    with AnAgent(tmp_path, "--status-url", server.url) as there:
        with socket.create_connection(("127.0.0.1", there.port)) as idle:
            there.signal(number)
            assert there.wait().status == 0
            assert idle.recv(1) == b""
        there.until_gone()


def test_a_status_page_that_falls_silent_does_not_end_it(tmp_path: Path) -> None:
    with serving(answer=PAGE) as lost:
        there = AnAgent(tmp_path, "--status-url", lost.url)
    with there:
        until(lambda: "status_lost" in {one["code"] for one in there.hello()["standing"]}, "it says that the page is gone")
        hello = there.hello()
        assert "kernel.tcp_inuse" in hello["latest"]
        assert "status.active" not in hello["latest"]
        assert b"asyncli_status_active" not in there.ask("/metrics")[1]


# Requests without a token, each from its own address, so that the rate limit does not hide the rest.
_PATH = st.one_of(st.sampled_from(["/v1/hello", "/v1/lease", "/v1/samples", "/v1/sample", "/metrics", "/"]), st.text(max_size=40))
_TEXT = st.text(st.characters(codec="latin-1", exclude_characters="\r\n\0"), max_size=60)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    if draw(st.booleans()):
        return draw(st.binary(max_size=400))
    path = "".join(char if char.isprintable() and char not in " \x7f" else "x" for char in draw(_PATH))
    query = draw(st.sampled_from(["", "?after=1", "?after=-1", "?after=" + "9" * 40, "?after=x", "?after=1&after=2", "?after=\u0661"]))
    body = draw(st.one_of(st.binary(max_size=200), st.just(b'{"holder": "x"}'), st.just(b"[" * 1000), st.just(b"x" * 5000)))
    names = st.sampled_from(["Authorization", "Asyncli-Protocol", "Asyncli-Lease", "Content-Type", "Expect", "Upgrade", "Cookie"])
    headers = draw(st.lists(st.tuples(names, st.one_of(_TEXT, st.sampled_from(["1", "2", "100-continue", "websocket"]))), max_size=4))
    lines = [f"{draw(st.sampled_from(['GET', 'POST', 'DELETE', 'HEAD', 'PUT', 'BREW']))} {path}{query} HTTP/1.1", f"Host: {draw(st.sampled_from(['x', 'localhost']))}"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines.append(draw(st.sampled_from([f"Content-Length: {len(body)}", "Transfer-Encoding: chunked", "Content-Length: 99999999", "X: y"])))
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace") + body


def test_the_agent_survives_any_request(agent: AnAgent) -> None:
    number = iter(range(1, 1_000_000))

    @settings(max_examples=50)
    @given(requests())
    def ask(sent: bytes) -> None:
        at = next(number)
        with socket.create_connection(("127.0.0.1", agent.port), 30, (f"127.2.{at // 250}.{at % 250 + 1}", 0)) as sock:
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)
            answer = b""
            try:
                while part := sock.recv(65536):
                    answer += part
            except ConnectionResetError:
                pass
        status = re.match(rb"HTTP/1\.[01] (\d\d\d) ", answer)
        assert not answer or status, answer
        assert status is None or not status[1].startswith(b"5"), answer

    ask()
    assert agent.hello()["protocol"] == 1
    assert "Traceback" not in agent.err
    assert all(line.startswith(("asyncli agent", "refused ", "unknown here")) for line in agent.err.splitlines())
