"""TLS contexts: errors of a certificate's key, and that no secret is written to a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key

from asyncli.model.certificates import client_context
from asyncli.model.errors import HostError
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
