"""TLS on real sockets: what is wrong is told before the ramp or counted by its cause, and a long-lived connection outlives whatever
TLS allows a server to do."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import strange_tls as strange
from programs import SHORT, Done, report, run

from asyncli import lab
from asyncli.protocols.tls13 import SUITES

SHORT_SOAK = ("-c", "12", "--ramp", "100/s", "--hold", "3", *SHORT, "--no-reopen")


def soaked(folder: Path, port: int, *more: str, ca: bool = True, scheme: str = "https") -> tuple[Done, dict[str, Any] | None]:
    """What it printed, and the summary where there was a run."""
    trust = ("--ca", "ca.pem") if ca else ()
    done = run(folder, "soak", f"{scheme}://127.0.0.1:{port}/", *trust, *SHORT_SOAK, "--out", "run.db", "--quiet", *more)
    return done, report(folder, "run.db") if (folder / "run.db").exists() else None


def at_most_1_2(context: ssl.SSLContext) -> None:
    context.maximum_version = ssl.TLSVersion.TLSv1_2


def asks_for_a_certificate(context: ssl.SSLContext) -> None:
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=strange.trustme.CA().cert_pem.bytes().decode())


def only(suite: str) -> Callable[[ssl.SSLContext], None]:
    def change(context: ssl.SSLContext) -> None:
        assert strange.libssl.SSL_CTX_set_ciphersuites(strange.inside(context), suite.encode()) == 1

    return change


# -- what is told before the ramp: nothing is recorded, and one line says what, where and how to mend it

REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...], bool, str]] = {
    "expired": (strange.EXPIRED, (), True, "expired on 2020-01-01"),
    "wrong_name": ({"names": ("shop.test", "www.shop.test")}, (), True, "not for 127.0.0.1, but for shop.test, www.shop.test"),
    "unknown_authority": ({}, (), False, "authority unknown here"),
    "no_version": ({"change": at_most_1_2}, ("--tls-min", "1.3"), True, "no version of TLS in common"),
    "no_suite": ({"change": at_most_1_2}, ("--tls-ciphers", "DHE-RSA-AES128-SHA"), True, "no cipher suite in common"),
    "no_handshake": ({"habit": strange.never_answers_hello}, ("--connect-timeout", "2"), True, "--connect-timeout (2 s)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_the_server_is_told_before_the_ramp(name: str, tmp_path: Path) -> None:
    server, flags, ca, words = REFUSED[name]
    with strange.serving(tmp_path, **server) as port:
        done, summary = soaked(tmp_path, port, *flags, ca=ca)
    assert (done.status, done.out, summary) == (2, "", None)
    assert done.err.count("\n") == 1
    assert words in done.err


def test_insecure_goes_on_and_says_so(tmp_path: Path) -> None:
    with strange.serving(tmp_path, **strange.EXPIRED) as port:
        done, summary = soaked(tmp_path, port, "--insecure", ca=False)
    assert done.status == 0
    assert summary is not None
    assert not summary["tls"]["verified"]
    assert {"tls_unverified", "tls_certificate_ends"} <= {one["code"] for one in summary["findings"]}


def test_http_on_the_port_of_tls_and_the_other_way_round(tmp_path: Path) -> None:
    with strange.serving(tmp_path) as port:
        done, summary = soaked(tmp_path, port, ca=False, scheme="http")
    assert (done.status, done.err) == (3, "")
    assert summary is not None
    assert summary["connections"]["held"] == 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer_in_the_clear, args=(listener,), daemon=True).start()
        done, summary = soaked(tmp_path, listener.getsockname()[1], "--out", "other.db")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "does not speak TLS" in done.err


def answer_in_the_clear(listener: socket.socket) -> None:
    sock, _ = listener.accept()
    with sock:
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


# -- what happens to connections that stand

Judged = Callable[[dict[str, Any]], None]


def held(summary: dict[str, Any]) -> None:
    counts = summary["connections"]
    assert (counts["held"], counts["lost"], counts["failed"]) == (12, 0, 0)
    assert summary["heartbeats"]["answered"] > 12


def ended(cause: str, *reasons: str) -> Judged:
    def judge(summary: dict[str, Any]) -> None:
        counts = summary["connections"]
        assert set(counts["deaths"]) == {cause}, summary["tls"]
        assert counts["lost"] == counts["opened"] == 12
        assert set(summary["tls"]["ended"]) == set(reasons)

    return judge


def refused_after_the_handshake(summary: dict[str, Any]) -> None:
    """Of TLS 1.3 a client has shaken hands before the server has seen its certificate."""
    assert set(summary["connections"]["deaths"]) == {"tls_failed"}
    assert set(summary["tls"]["ended"]) == {"alert certificate_required"}


def never_shook_hands(summary: dict[str, Any]) -> None:
    counts = summary["connections"]
    assert (counts["held"], counts["opened"], counts["failures"]) == (0, 0, {"tls_timeout": 12})


def speaks(words: str) -> Judged:
    def judge(summary: dict[str, Any]) -> None:
        held(summary)
        assert summary["tls"]["spoken"] == {words: 12}
        assert summary["tls"]["objects"] == (12 if words.startswith("TLSv1.2") else 0)

    return judge


def resumed(summary: dict[str, Any]) -> None:
    held(summary)
    assert summary["tls"]["resumed"] > summary["tls"]["full"] > 0


KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...], Judged]] = {
    **{suite: ({"change": only(suite)}, (), speaks(f"TLSv1.3 {suite}")) for suite in SUITES},
    "tls_1_2": ({}, ("--tls-max", "1.2"), speaks("TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384")),
    "resumed": ({}, ("--tls-resume", "--ramp", "1/100ms"), resumed),
    "keys_updated": ({"habit": strange.updates_keys}, (), held),
    "keys_updated_and_long_answers": ({"habit": strange.updates_keys}, ("--method", "GET"), held),
    "records_of_a_byte": ({"habit": strange.small_records}, (), held),
    "long_answers": ({}, ("--method", "GET"), held),
    "long_answers_of_1_2": ({"change": at_most_1_2}, ("--method", "GET"), held),
    "replayed": ({"habit": strange.replays}, (), ended("tls_failed", "a record that does not fit its key")),
    "garbled": ({"habit": strange.garbles}, (), ended("tls_failed", "a record that does not fit its key")),
    "in_the_clear": ({"habit": strange.writes_in_the_clear}, (), ended("tls_failed", "a record that is not encrypted")),
    "closes_after_the_handshake": ({"habit": strange.closes_after_handshake}, (), ended("closed_awaiting")),
    "goodbye": ({"habit": strange.says_goodbye}, (), ended("closed_idle")),
    # It is refused, and OpenSSL's server then closes.
    "renegotiates": ({"habit": strange.asks_anew, "change": at_most_1_2}, (), ended("closed_idle")),
    "silent": ({"habit": strange.falls_silent}, ("--connect-timeout", "1"), never_shook_hands),
    "no_client_certificate": ({"change": asks_for_a_certificate}, (), refused_after_the_handshake),
}  # fmt: skip


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[tuple[Done, dict[str, Any] | None]]]:
    def soak(name: str) -> tuple[Done, dict[str, Any] | None]:
        server, flags, _ = KINDS[name]
        folder = tmp_path_factory.mktemp(name)
        with strange.serving(folder, **server) as port:
            return soaked(folder, port, *flags)

    pool = ThreadPoolExecutor(6)
    return {name: pool.submit(soak, name) for name in KINDS}


@pytest.mark.parametrize("name", KINDS)
def test_whatever_a_server_does_is_held_or_has_its_cause(name: str, running: dict[str, Future[tuple[Done, dict[str, Any] | None]]]) -> None:
    done, summary = running[name].result()
    assert not done.err, done.err
    assert summary is not None
    KINDS[name][2](summary)


# -- real servers, and benches

SERVERS = [pytest.param(name, marks=getattr(pytest.mark, mark)) for name, mark in (("nginx", "nginx"), ("haproxy", "haproxy"), ("apache-event", "apache"))]


@pytest.mark.parametrize("name", [*SERVERS, "builtin"])
async def test_a_server_of_the_lab_is_held_and_benched_over_tls(name: str, tmp_path: Path) -> None:
    async with lab.choose(name, connections=300, tls=True) as server:
        assert server.authority is not None
        shutil.copy(server.authority, tmp_path / "ca.pem")
        # Whoever may look into the folder may not read the key.
        assert (server.authority.parent / "server.pem").stat().st_mode & 0o077 == 0
        done, summary = await asyncio.to_thread(soaked, tmp_path, server.port, "--status-url", server.status_url or "", "-c", "40")
        assert summary is not None, done
        assert (summary["connections"]["held"], summary["connections"]["lost"]) == (40, 0)
        assert summary["tls"]["full"] == 40
        assert summary["environment"]["tls"]["certificate"]["key"] == "EC 256"
        for flags in (("-c", "4"), ("-c", "4", "--pipeline", "5"), ("-c", "4", "--short"), ("-c", "4", "--rate", "400")):
            argv = ("bench", server.url, "--ca", "ca.pem", "-n", "200", *flags, "--force", "--json", "-")
            done = await asyncio.to_thread(run, tmp_path, *argv)
            requests = json.loads(done.out)["requests"]
            assert (requests["total"], requests["failed"]) == (200, 0), done
