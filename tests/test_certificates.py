"""TLS contexts: errors of a certificate's key, and that no secret is written to a file."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key

from asyncli.engine.shard import build_shard
from asyncli.engine.spread import Spread
from asyncli.model.certificates import client_context
from asyncli.model.errors import HostError
from asyncli.model.plan import Layer, build_plan
from asyncli.model.values import TlsOptions


@pytest.mark.parametrize(("which", "said"), [("locked", "the key has a passphrase"), ("another", "the key does not belong to the certificate")])
def test_what_is_wrong_with_a_key(which: str, said: str, tmp_path: Path) -> None:
    mine, other = (trustme.CA().issue_cert("127.0.0.1") for _ in range(2))
    mine.cert_chain_pems[0].write_to_path(tmp_path / "own.pem")
    key = (mine if which == "locked" else other).private_key_pem.bytes()
    if which == "locked":
        key = load_pem_private_key(key, None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    (tmp_path / "key.pem").write_bytes(key)
    with pytest.raises(HostError, match=said):
        client_context(TlsOptions(client_cert=f"{tmp_path}/own.pem", client_key=f"{tmp_path}/key.pem"))


def test_no_secret_goes_into_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", f"{tmp_path}/secrets")
    assert client_context(TlsOptions()).keylog_filename is None


@pytest.mark.parametrize(
    ("url", "more", "offered"),
    [
        ("https://a/", {}, ("http/1.1",)), ("wss://a/", {}, ("http/1.1",)), ("https://a/", {"http2": True}, ("h2", "http/1.1")),
        ("mqtts://a", {}, ()), ("tls://a:1", {}, ()), ("mqtts://a", {"alpn": "mqtt,x-amzn-mqtt-ca"}, ("mqtt", "x-amzn-mqtt-ca")),
    ],
)  # fmt: skip
def test_what_a_protocol_offers_by_alpn(url: str, more: dict[str, object], offered: tuple[str, ...]) -> None:
    plan = build_plan([Layer("--{key}", {"urls": [url], **more})])
    assert plan.offered_alpn == build_shard(plan, Spread((), (), 1, True, 1)).offered_alpn == offered
    there = ssl.MemoryBIO()
    client = client_context(plan.tls_options, plan.offered_alpn).wrap_bio(ssl.MemoryBIO(), there, server_hostname="a")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    # The list of the extension: each name after its length (RFC 7301, section 3.1).
    names = b"".join(bytes((len(name),)) + name.encode() for name in offered)
    extension = b"\0\x10" + (len(names) + 2).to_bytes(2) + len(names).to_bytes(2) + names
    assert (extension in there.read()) == bool(offered)
