"""TLS on real sockets: what is wrong is told before the ramp or counted by its cause, and a long-lived connection outlives whatever
TLS allows a server to do."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import strange_tls as strange
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from programs import SHORT, Done, Program, here, report, require_whole, speaking

from asyncli import lab
from asyncli.lab import certificate
from asyncli.protocols.tls13 import SUITES

#: On each server of a soak.
EACH = 12
SHORT_SOAK = ("--ramp", "100/s", "--hold", "3", *SHORT, "--no-reopen")


def soaked(folder: Path, *ports: int, more: tuple[str, ...] = (), ca: bool = True, scheme: str = "https") -> tuple[Done, dict[str, Any] | None]:
    """What it printed, and the summary where there was a run."""
    urls = [f"{scheme}://127.0.0.1:{port}/" for port in ports]
    trust = ("--ca", "ca.pem") if ca else ()
    done = here(folder, "soak", *urls, *trust, "-c", EACH * len(ports), *SHORT_SOAK, "--out", "run.db", "--quiet", *more)
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


def knows_no_name(context: ssl.SSLContext) -> None:
    """As nginx with ssl_reject_handshake."""
    context.sni_callback = lambda sock, name, used: ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME


# -- what is told before the ramp: nothing is recorded, and one line says what, where and how to mend it

REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...], bool, str]] = {
    "expired": (strange.EXPIRED, (), True, "expired on 2020-01-01"),
    "not_yet": ({key: one.replace(year=one.year + 60) for key, one in strange.EXPIRED.items()}, (), True, "not valid before 2079-01-01 00:00 UTC"),
    "wrong_name": ({"names": ("shop.test", "www.shop.test")}, (), True, "not for 127.0.0.1, but for shop.test, www.shop.test"),
    "unknown_authority": ({}, (), False, "which the server does not send and which is not known here"),
    "unknown_name": ({"change": knows_no_name}, (), True, "has no host of the name 127.0.0.1 (SNI)"),
    "no_version": ({"change": at_most_1_2}, ("--tls-min", "1.3"), True, "no version of TLS in common"),
    "no_suite": ({"change": at_most_1_2}, ("--tls-ciphers", "DHE-RSA-AES128-SHA"), True, "no cipher suite in common"),
    # Of TLS 1.3 it sees that we have none when our handshake is over.
    "no_certificate": ({"change": asks_for_a_certificate}, (), True, "it refused our certificate (alert certificate required)"),
    "no_handshake": ({"habit": strange.never_answers_hello}, ("--connect-timeout", "1"), True, "--connect-timeout (1 s)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_the_server_is_told_before_the_ramp(name: str, tmp_path: Path) -> None:
    server, flags, ca, words = REFUSED[name]
    with strange.serving(tmp_path, **server) as port:
        done, summary = soaked(tmp_path, port, more=flags, ca=ca)
    assert (done.status, done.out, summary) == (2, "", None)
    assert done.err.count("\n") == 1
    assert words in done.err


@pytest.mark.parametrize("whole", [False, True])
def test_an_intermediate_authority_that_is_not_sent_is_named(whole: bool, tmp_path: Path) -> None:
    root = strange.trustme.CA()
    issued = root.create_child_ca().issue_cert("127.0.0.1")
    root.cert_pem.write_to_path(tmp_path / "root.pem")

    def shows_it(context: ssl.SSLContext) -> None:
        for number, pem in enumerate(issued.cert_chain_pems if whole else issued.cert_chain_pems[:1]):
            pem.write_to_path(tmp_path / "chain.pem", append=number > 0)
        issued.private_key_pem.write_to_path(tmp_path / "key.pem")
        context.load_cert_chain(tmp_path / "chain.pem", tmp_path / "key.pem")

    with strange.serving(tmp_path, change=shows_it) as port:
        done = here(tmp_path, "check", "--probe", "-c", "5", "--ca", "root.pem", f"https://127.0.0.1:{port}/")
        other = here(tmp_path, "check", "--probe", "-c", "5", "--ca", "ca.pem", f"https://127.0.0.1:{port}/")
    assert (done.status, "intermediate" in done.err) == ((0, False) if whole else (2, True)), done
    # With the whole chain it is the root that is not known.
    assert ("intermediate" in other.err, "another authority" in other.err) == (not whole, whole)


def test_a_certificate_without_names_is_told_apart_from_one_of_another_name(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(days=1), now + timedelta(days=9))
    (tmp_path / "cn.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with strange.serving(tmp_path, change=lambda context: context.load_cert_chain(tmp_path / "cn.pem", tmp_path / "key.pem")) as port:
        done = here(tmp_path, "check", "--probe", "-c", "5", "--ca", "cn.pem", f"https://127.0.0.1:{port}/")
    assert (done.status, "subjectAltName" in done.err, "but for" in done.err) == (2, True, False), done


def test_check_warns_of_an_error_answer(tmp_path: Path) -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    with speaking(refuses) as at:
        assert "(HTTP 400)" in here(tmp_path, "check", "--probe", f"http://{at}/").out


def test_a_forced_soak_says_what_it_passed_over(tmp_path: Path) -> None:
    with strange.serving(tmp_path, **strange.EXPIRED) as port:
        _, summary = soaked(tmp_path, port, more=("--force", "--hold", "0.2"))
    assert summary is not None
    found = {one["code"]: one["fields"] for one in summary["findings"]}
    assert {"probe_refused", "tls_handshakes_failed"} <= found.keys()
    assert (summary["environment"]["tls"]["verified"], found["tls_certificate_ends"]["ends"][:10]) == (False, "2020-01-01")


def test_a_certificate_that_ends_within_the_run_is_told_before_it(tmp_path: Path) -> None:
    ends = datetime.now(UTC) + timedelta(hours=3)
    with strange.serving(tmp_path, not_after=ends, not_before=ends - timedelta(hours=4)) as port:
        done = here(tmp_path, "check", "--probe", "--hold", "8h", "--ca", "ca.pem", f"https://127.0.0.1:{port}/")
        assert f"{ends:%F %T} UTC" in " ".join(done.out.split())
        with Program(tmp_path, "soak", "--hold", "8h", "--ca", "ca.pem", "-c", "2", *SHORT, f"https://127.0.0.1:{port}/") as soak:
            soak.until(lambda: f"{ends:%F %T} UTC" in " ".join(soak.err.split()), "the end of the certificate")
            soak.signal()


def test_a_server_elsewhere_is_asked_by_the_name_of_the_url_or_the_one_given(tmp_path: Path) -> None:
    asked = ("soak", "https://shop.test/", "--ca", "ca.pem", "-c", EACH, *SHORT_SOAK, "--quiet")
    with strange.serving(tmp_path, names=("shop.test", "other.test")) as port:
        for number, more in enumerate(((), ("--sni", "other.test"), ("--sni", "third.test"))):
            done = here(tmp_path, *asked, "--connect-to", f"127.0.0.1:{port}", *more, "--out", f"{number}.db")
            assert (done.status in (0, 4), "third.test" in done.err) == ((True, False), (True, False), (False, True))[number], done


BENCHED: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, int], str, set[str]]] = {
    "unverified": (strange.EXPIRED, ("--insecure",), {"full": 4, "resumed": 0}, "passed", {"tls_unverified", "tls_certificate_ends"}),
    "resumed": (
        {"change": at_most_1_2}, ("--ca", "ca.pem", "--tls-resume", "--short", "-c", "1"), {"full": 1, "resumed": 19}, "passed", set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BENCHED)
def test_a_bench_says_of_tls_what_a_soak_says(name: str, tmp_path: Path) -> None:
    server, flags, counts, verdict, codes = BENCHED[name]
    with strange.serving(tmp_path, **server) as port:
        done = here(tmp_path, "bench", f"https://127.0.0.1:{port}/", "-c", "4", "-n", "20", *flags, "--json", "bench.json")
    found = json.loads((tmp_path / "bench.json").read_text())
    assert {key: found["tls"][key] for key in counts} == counts
    assert found["tls"]["verified"] == ("--insecure" not in flags)
    told = {finding["code"] for finding in found["findings"]}
    assert codes <= told
    # A busy machine makes a bench invalid, and what it says of TLS no less exact.
    is_late = any(code.startswith("generator_saturated_") for code in told)
    assert found["verdict"] == ("invalid" if is_late else verdict)
    assert f"TLS          {next(iter(found['tls']['spoken']))}, " in done.out


def test_check_says_what_it_did_not_look_at_and_with_probe_what_was_agreed_on(tmp_path: Path) -> None:
    with strange.serving(tmp_path, **strange.EXPIRED) as port:
        assert "--probe" in here(tmp_path, "check", f"https://127.0.0.1:{port}/").out
        done = here(tmp_path, "check", "--probe", "--insecure", f"https://127.0.0.1:{port}/")
    assert "TLS: TLSv1.3 TLS_AES_256_GCM_SHA384, unverified EC 256 certificate until 2020-01-01" in " ".join(done.out.split())
    assert "(--insecure)" in done.out


def test_a_search_is_refused_as_a_soak_is_and_a_step_says_what_tls_failed_of(tmp_path: Path) -> None:
    with strange.serving(tmp_path, **strange.EXPIRED) as port:
        words = ("capacity", f"https://127.0.0.1:{port}/", "--ca", "ca.pem", "--start", "10", "--most", "10", "--out", "steps")
        done = here(tmp_path, *words)
        assert (done.status, done.out, done.err.count("\n"), (tmp_path / "steps").exists()) == (2, "", 1, False)
        assert "expired on 2020-01-01" in done.err
        done = here(tmp_path, *words, "--baseline", "0.1", "--hold", "0.1", "--force", "--json", "-")
    way = json.loads(done.out)["gave_way"][0]
    assert (way["side"], way["code"]) == ("server", "tls_failed")
    assert "certificate has expired" in way["evidence"]


def test_a_key_that_is_too_short_and_one_that_is_missing_are_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(certificate.ec, "generate_private_key", lambda _: rsa.generate_private_key(65537, 1024))
        issued = certificate.issue("127.0.0.1")
    (tmp_path / "short.pem").write_bytes(issued.certificate + issued.key)
    (tmp_path / "its-ca.pem").write_bytes(issued.authority)

    def shows_it(context: ssl.SSLContext) -> None:
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        context.load_cert_chain(tmp_path / "short.pem")

    with strange.serving(tmp_path, change=shows_it, key_type=strange.trustme.KeyType.RSA) as port:
        short, _ = soaked(tmp_path, port, more=("--ca", "its-ca.pem"), ca=False)
        missing, _ = soaked(tmp_path, port, more=("--client-cert", "its-ca.pem"))
    assert "(RSA 1024); issue" in short.err
    assert "its-ca.pem: holds no" in missing.err
    assert "ssl.c" not in missing.err


def test_insecure_goes_on_and_says_so(tmp_path: Path) -> None:
    with strange.serving(tmp_path, **strange.EXPIRED) as port:
        done, summary = soaked(tmp_path, port, more=("--insecure", "--hold", "0.2"), ca=False)
    assert summary is not None
    require_whole(done.status, summary)
    assert not summary["tls"]["verified"]
    assert {"tls_unverified", "tls_certificate_ends"} <= {one["code"] for one in summary["findings"]}


def test_http_on_the_port_of_tls_and_the_other_way_round(tmp_path: Path) -> None:
    async def in_the_clear(_: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    with speaking(in_the_clear) as at:
        done, summary = soaked(tmp_path, int(at.partition(":")[2]), ca=False)
    assert (done.status, done.err.count("\n"), summary) == (2, 1, None)
    assert "does not speak TLS" in done.err
    with strange.serving(tmp_path) as port:
        done, summary = soaked(tmp_path, port, ca=False, scheme="http")
    assert (done.status, done.err) == (3, "")
    assert summary is not None
    assert summary["connections"]["held"] == 0


# -- what happens to connections that stand: the servers of a soak, its flags, and what becomes of it


def held(summary: dict[str, Any]) -> None:
    counts = summary["connections"]
    assert (counts["held"], counts["lost"], counts["failed"]) == (counts["requested"], 0, 0)
    assert summary["heartbeats"]["answered"] > counts["held"]


def each_speaks_its_own(summary: dict[str, Any]) -> None:
    held(summary)
    suites = {f"TLSv1.3 {suite}": EACH for suite in SUITES}
    # Of three servers the suite is what OpenSSL likes best.
    suites |= {"TLSv1.3 TLS_AES_256_GCM_SHA384": 3 * EACH, "TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384": EACH}
    assert summary["tls"]["spoken"] == suites
    assert summary["tls"]["objects"] == EACH  # of TLS 1.2


def resumed(summary: dict[str, Any]) -> None:
    held(summary)
    assert summary["tls"]["resumed"] > summary["tls"]["full"] > 0


def not_resumed(summary: dict[str, Any]) -> None:
    held(summary)
    assert (summary["tls"]["full"], summary["tls"]["resumed"]) == (EACH, 0)
    assert list(summary["tls"]["certificates"].values()) == [EACH]
    codes = {one["code"] for one in summary["findings"]}
    assert "tls_not_resumed" in codes
    assert "tls_objects" not in codes


def no_sessions(context: ssl.SSLContext) -> None:
    context.num_tickets = 0


def all_ended(summary: dict[str, Any]) -> None:
    counts = summary["connections"]
    # The first shook no hands.
    assert (counts["opened"], counts["lost"], counts["held"]) == (6 * EACH, 6 * EACH, 0)
    assert counts["failures"] == {"tls_timeout": EACH}
    assert counts["deaths"] == {"tls_failed": 3 * EACH, "closed_awaiting": EACH, "closed_idle": 2 * EACH}
    # Of the replayed records too the first ones are an answer, though the second ones in the same read end the connection.
    assert summary["heartbeats"]["answered"] == 8 * EACH
    assert summary["tls"]["ended"] == {"a record that does not fit its key": 2 * EACH, "a record that is not encrypted": EACH}


SOAKS: dict[str, tuple[list[dict[str, Any]], tuple[str, ...], Callable[[dict[str, Any]], None]]] = {
    "held": (
        [*({"change": only(suite)} for suite in SUITES), {"change": at_most_1_2}, {"habit": strange.updates_keys}, {"habit": strange.small_records}],
        (), each_speaks_its_own,
    ),
    "held, with long answers": ([{"habit": strange.updates_keys}, {"change": at_most_1_2}], ("--method", "GET"), held),
    "resumed": ([{}], ("--tls-resume", "--ramp", "1/100ms", "--method", "GET"), resumed),
    "not resumed": ([{"change": no_sessions}], ("--tls-resume", "--ramp", "1/100ms"), not_resumed),
    "ended": (
        # The first is asked for several handshakes before the ramp. What is asked for anew is refused, and OpenSSL's server then closes.
        [{"habit": strange.falls_silent}, {"habit": strange.replays}, {"habit": strange.garbles}, {"habit": strange.writes_in_the_clear},
         {"habit": strange.closes_after_handshake}, {"habit": strange.says_goodbye}, {"habit": strange.asks_anew, "change": at_most_1_2}],
        # Far longer than the handshakes of the others take on a busy machine.
        ("--connect-timeout", "4"), all_ended,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOAKS)
def test_whatever_a_server_does_is_held_or_has_its_cause(name: str, tmp_path: Path) -> None:
    servers, flags, judge = SOAKS[name]
    with ExitStack() as stack:
        ports = [stack.enter_context(strange.serving(tmp_path, **one)) for one in servers]
        done, summary = soaked(tmp_path, *ports, more=flags)
    assert not done.err, done.err
    assert summary is not None
    judge(summary)


# -- real servers, and benches

BENCHES = ((), ("--pipeline", "5"), ("--short",), ("--rate", "400"))


@pytest.mark.parametrize(
    ("name", "version", "benches"),
    [
        pytest.param("nginx", "1.3", BENCHES, marks=pytest.mark.nginx),
        pytest.param("haproxy", "1.2", BENCHES[2:3], marks=pytest.mark.haproxy),
        pytest.param("apache-event", "1.3", BENCHES[2:3], marks=pytest.mark.apache),
        ("builtin", "1.3", BENCHES[2:3]),
    ],
)
def test_a_server_of_the_lab_is_held_and_benched_over_tls(name: str, version: str, benches: tuple[tuple[str, ...], ...], tmp_path: Path) -> None:
    server = lab.choose(name, connections=300, tls=True)
    with asyncio.Runner() as runner:
        runner.run(server.start())
        try:
            assert server.authority is not None
            shutil.copy(server.authority, tmp_path / "ca.pem")
            # Whoever may look into the folder may not read the key.
            assert (server.authority.parent / "server.pem").stat().st_mode & 0o077 == 0
            more = ("--status-url", server.status_url or "", "-c", "40", "--tls-max", version, "--hold", "1")
            done, summary = soaked(tmp_path, server.port, more=more)
            assert summary is not None, done
            assert (summary["connections"]["held"], summary["connections"]["lost"]) == (40, 0)
            assert (summary["tls"]["full"], {one[:7] for one in summary["tls"]["spoken"]}) == (40, {f"TLSv{version}"})
            assert summary["environment"]["tls"]["certificate"]["key"] == "EC 256"
            for flags in benches:
                done = here(tmp_path, "bench", server.url, "--ca", "ca.pem", "-n", "200", "-c", "4", *flags, "--force", "--json", "-")
                requests = json.loads(done.out)["requests"]
                assert (requests["total"], requests["failed"]) == (200, 0), done
        finally:
            runner.run(server.stop())
