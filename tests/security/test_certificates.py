"""Certificates for development: who signed them, what they are for, how long they are valid."""

from __future__ import annotations

import hashlib
import random
import ssl
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from penstock.security.certificates import (
    CHAIN_MAX,
    EARLY_MS,
    CertificatesInvalid,
    Issued,
    Subject,
    describe,
    new_authority,
    new_client,
    new_server,
)

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000


def _random(seed: int = 1) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


AUTHORITY = new_authority(Subject("test authority", organization="Acme"), NOW_MS, _random(0))


def _load(issued: Issued) -> x509.Certificate:
    return x509.load_pem_x509_certificate(issued.certificate.encode())


def test_the_authority_signs_the_certificates() -> None:
    server = new_server(AUTHORITY, Subject("b1"), ["b1"], NOW_MS, _random())
    client = new_client(AUTHORITY, Subject("alice"), NOW_MS, _random(2))
    for issued in (server, client):
        _load(issued).verify_directly_issued_by(_load(AUTHORITY))
    _load(AUTHORITY).verify_directly_issued_by(_load(AUTHORITY))
    with pytest.raises(ValueError, match="issuer"):
        _load(client).verify_directly_issued_by(_load(server))


def test_a_server_certificate_names_hosts_and_addresses() -> None:
    hosts = ["b1.example.com", "localhost", "10.0.0.1", "::1", "*.example.com"]
    issued = new_server(AUTHORITY, Subject("b1"), hosts, NOW_MS, _random())
    names = _load(issued).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [hosts[0], hosts[1], hosts[4]]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == hosts[2:4]


def test_a_client_certificate_is_not_valid_for_a_server_or_as_an_authority() -> None:
    extensions = _load(new_client(AUTHORITY, Subject("a"), NOW_MS, _random())).extensions
    uses = list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    assert uses == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_a_description_says_what_people_ask() -> None:
    subject = Subject("Zoë", unit="ops", organization="Acme, Inc", country="CH")
    issued = new_server(AUTHORITY, subject, ["b1", "10.0.0.1"], NOW_MS, _random(), days=30)
    (found,) = describe(issued.certificate)
    assert found.subject == "CN=Zoë,OU=ops,O=Acme\\, Inc,C=CH"
    assert found.issuer == "CN=test authority,O=Acme"
    assert found.names == ("b1", "10.0.0.1")
    assert (found.not_before_ms, found.not_after_ms) == (NOW_MS - EARLY_MS, NOW_MS + 30 * DAY_MS)
    der = ssl.PEM_cert_to_DER_cert(issued.certificate)
    assert found.fingerprint.replace(":", "").lower() == hashlib.sha256(der).hexdigest()
    assert not found.is_authority
    assert found.days_left(NOW_MS) == 30
    assert found.days_left(NOW_MS + 30 * DAY_MS + 1) == -1
    assert found.is_valid_at(NOW_MS)
    assert not found.is_valid_at(NOW_MS - EARLY_MS - 1)
    assert not found.is_valid_at(NOW_MS + 31 * DAY_MS)


def test_all_certificates_of_a_text_are_described_in_order() -> None:
    client = new_client(AUTHORITY, Subject("alice"), NOW_MS, _random())
    found = describe(client.certificate + AUTHORITY.certificate)
    assert [(each.subject, each.is_authority) for each in found] == [
        ("CN=alice", False),
        ("CN=test authority,O=Acme", True),
    ]


@pytest.mark.parametrize("text", ["", "no certificate", AUTHORITY.key])
def test_a_text_without_certificates_is_refused(text: str) -> None:
    with pytest.raises(CertificatesInvalid, match="BEGIN CERTIFICATE"):
        describe(text)


def test_a_text_with_too_many_certificates_is_refused() -> None:
    with pytest.raises(CertificatesInvalid, match="more than"):
        describe(AUTHORITY.certificate * (CHAIN_MAX + 1))


def test_a_key_can_be_protected_with_a_password() -> None:
    issued = new_client(AUTHORITY, Subject("a"), NOW_MS, _random(), key_password="open sesame")
    with pytest.raises(TypeError):
        serialization.load_pem_private_key(issued.key.encode(), None)
    assert serialization.load_pem_private_key(issued.key.encode(), b"open sesame")


def test_keys_and_serial_numbers_come_from_the_random_bytes() -> None:
    first, again, other = (
        new_client(AUTHORITY, Subject("a"), NOW_MS, _random(seed)) for seed in (5, 5, 6)
    )
    assert first.key == again.key != other.key
    assert _load(first).serial_number == _load(again).serial_number != _load(other).serial_number


def test_random_bytes_of_zero_still_make_a_valid_key() -> None:
    issued = new_client(AUTHORITY, Subject("a"), NOW_MS, bytes)
    assert _load(issued).serial_number > 0
    assert serialization.load_pem_private_key(issued.key.encode(), None)


def test_the_key_is_not_in_the_repr() -> None:
    assert AUTHORITY.key not in repr(AUTHORITY)
    assert "PRIVATE" not in repr(AUTHORITY)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: new_server(AUTHORITY, Subject("b"), [], NOW_MS, _random()), "at least one host"),
        (lambda: new_server(AUTHORITY, Subject("b"), ["zoë"], NOW_MS, _random()), "xn--"),
        (lambda: new_client(AUTHORITY, Subject(""), NOW_MS, _random()), "common name"),
        (lambda: new_client(AUTHORITY, Subject("a"), NOW_MS, _random(), days=0), "at least 1"),
        (lambda: new_client(AUTHORITY, Subject("a" * 65), NOW_MS, _random()), "not valid"),
        (lambda: new_client(AUTHORITY, Subject("a", country="X"), NOW_MS, _random()), "not valid"),
    ],
)
def test_invalid_wishes_are_refused(make: Callable[[], Issued], problem: str) -> None:
    with pytest.raises(CertificatesInvalid, match=problem):
        make()
