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
    """A certificate for this address, localhost and 127.0.0.1: EC P-256 with SHA-256, valid for 90
    days.
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _name("asyncli lab")
    server = _name("lab server")
    public = authority_key.public_key()
    authority_certificate = (
        _builder(authority, authority, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    key_identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(public)
    certificate = (
        _builder(server, authority, key)
        .add_extension(_alternative_names(address), critical=False)
        .add_extension(key_identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return Issued(authority_certificate.public_bytes(pem), certificate.public_bytes(pem), private)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative_names(address: str) -> x509.SubjectAlternativeName:
    """localhost and each address that clients may use."""
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    for ip in dict.fromkeys(map(ip_address, (address, "127.0.0.1", "::1"))):
        if not ip.is_unspecified:
            names.append(x509.IPAddress(ip))
    return x509.SubjectAlternativeName(names)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    # Another host's clock may be behind ours.
    since = now - datetime.timedelta(days=1)
    until = now + datetime.timedelta(days=_DAYS)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
    )
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
    )
