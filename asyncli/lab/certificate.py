"""A new certificate for each start of a lab server, and the authority that signs it."""

from __future__ import annotations

import datetime
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAYS = 90


class Issued(NamedTuple):
    """All in PEM. ``key`` is the server's; the authority's key is discarded."""

    authority: bytes
    certificate: bytes
    key: bytes


def issue(address: str) -> Issued:
    """A certificate for this address, localhost and 127.0.0.1: EC P-256 with SHA-256, valid for 90 days."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority, server = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("asyncli lab", "lab server"))
    addresses = dict.fromkeys(one for one in (address, "127.0.0.1", "::1") if not ip_address(one).is_unspecified)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), *(x509.IPAddress(ip_address(one)) for one in addresses)])
    key_identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    signed = (
        _builder(authority, authority, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256()),
        _builder(server, authority, key).add_extension(names, critical=False).add_extension(key_identifier, critical=False)
        .sign(authority_key, hashes.SHA256()),
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return Issued(signed[0].public_bytes(pem), signed[1].public_bytes(pem), private)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    # Another host's clock may be behind ours.
    since, until = now - datetime.timedelta(days=1), now + datetime.timedelta(days=_DAYS)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return builder.serial_number(x509.random_serial_number()).not_valid_before(since).not_valid_after(until)
