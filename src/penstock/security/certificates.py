"""Makes certificates for development and tests, and describes certificates.

One authority signs the certificates of brokers and clients. All keys are on the curve P-256: a
handshake with such a key takes a third of the time that one with RSA takes. The time and random
bytes are arguments. Signatures draw their own random numbers, inside OpenSSL.

An authority of the organization is a better choice for production: it can protect its key, and
knows to whom it gave certificates.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.security.principal_rules import distinguished_name

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 365
EARLY_MS: Final = 3_600_000
"""Certificates are valid from this long before they were made, for peers whose clock is slow."""
CHAIN_MAX: Final = 1_000
"""How many certificates a PEM text may contain."""

_GROUP_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The number of points on P-256. A private key is a number below it."""
_KEY_BYTES: Final = 40
"""More than a key has, so that each key is as likely as every other."""
_SERIAL_BYTES: Final = 16
_DAY_MS: Final = 86_400_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

RandomBytes = Callable[[int], bytes]
"""Returns that many unpredictable bytes."""


class CertificatesInvalid(ValueError):
    """The certificates cannot be made or read. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a certificate is for. Java prints it as `CN=...,OU=...,O=...,C=...`."""

    common_name: str
    unit: str = ""
    organization: str = ""
    country: str = ""
    """Two letters."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its private key, in PEM."""

    certificate: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Description:
    """What people want to know about a certificate."""

    subject: str
    """The distinguished name, as `ssl.principal.mapping.rules` sees it."""
    issuer: str
    names: tuple[str, ...]
    """The host names and addresses that it is valid for (its SANs)."""
    not_before_ms: int
    not_after_ms: int
    fingerprint: str
    """SHA-256 of the certificate, in hexadecimal with colons, as OpenSSL prints it."""
    serial: str
    is_authority: bool

    def is_valid_at(self, now_ms: int) -> bool:
        return self.not_before_ms <= now_ms <= self.not_after_ms

    def days_left(self, now_ms: int) -> int:
        """Returns the number of whole days until it expires; negative once it has."""
        return (self.not_after_ms - now_ms) // _DAY_MS


def new_authority(
    subject: Subject, now_ms: int, random_bytes: RandomBytes, days: int = AUTHORITY_DAYS
) -> Issued:
    """Returns a certificate that can sign others, signed by itself."""
    key = _new_key(random_bytes)
    name = _name(subject)
    builder = (
        _builder(name, name, key, now_ms, days, random_bytes)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False)
    )
    return _issued(builder.sign(key, hashes.SHA256()), key, None)


def new_server(
    authority: Issued,
    subject: Subject,
    hosts: Sequence[str],
    now_ms: int,
    random_bytes: RandomBytes,
    days: int = CERTIFICATE_DAYS,
    key_password: str | None = None,
) -> Issued:
    """Returns the certificate of a broker, for the host names and addresses in `hosts`.

    A broker also uses it as a client of other brokers.
    """
    if not hosts:
        raise CertificatesInvalid(
            "a server's certificate needs at least one host name or address that clients use"
        )
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    return _signed(authority, subject, uses, names, now_ms, random_bytes, days, key_password)


def new_client(
    authority: Issued,
    subject: Subject,
    now_ms: int,
    random_bytes: RandomBytes,
    days: int = CERTIFICATE_DAYS,
    key_password: str | None = None,
) -> Issued:
    """Returns the certificate of a client. Its subject becomes the name of the user."""
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    return _signed(authority, subject, uses, None, now_ms, random_bytes, days, key_password)


def describe(pem: str) -> tuple[Description, ...]:
    """Describes each certificate of a PEM text, in its order. Raises `CertificatesInvalid`."""
    certificates = _loaded(pem)
    try:
        return tuple(map(_described, certificates))
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise CertificatesInvalid(f"a certificate is damaged: {error}") from error


def _described(certificate: x509.Certificate) -> Description:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        is_authority = constraints.value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    digest = certificate.fingerprint(hashes.SHA256())
    return Description(
        subject=distinguished_name(certificate.public_bytes(serialization.Encoding.DER)),
        issuer=certificate.issuer.rfc4514_string(),
        names=_alternative_names(certificate),
        not_before_ms=_milliseconds(certificate.not_valid_before_utc),
        not_after_ms=_milliseconds(certificate.not_valid_after_utc),
        fingerprint=digest.hex(":").upper(),
        serial=f"{certificate.serial_number:x}",
        is_authority=is_authority,
    )


def _alternative_names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    return tuple(_shown(name) for name in found.value)


def _shown(name: x509.GeneralName) -> str:
    if isinstance(name, x509.DNSName | x509.RFC822Name | x509.UniformResourceIdentifier):
        return name.value
    if isinstance(name, x509.IPAddress):
        return str(name.value)
    return repr(name)


def _loaded(pem: str) -> list[x509.Certificate]:
    if pem.count("-----BEGIN CERTIFICATE-----") > CHAIN_MAX:
        raise CertificatesInvalid(f"the PEM text has more than {CHAIN_MAX} certificates")
    try:
        return x509.load_pem_x509_certificates(pem.encode())
    except ValueError as error:
        raise CertificatesInvalid(
            f"no certificate can be read from the PEM text ({error}): it must contain "
            "-----BEGIN CERTIFICATE-----"
        ) from error


def _signed(
    authority: Issued,
    subject: Subject,
    uses: Sequence[x509.ObjectIdentifier],
    names: x509.SubjectAlternativeName | None,
    now_ms: int,
    random_bytes: RandomBytes,
    days: int,
    key_password: str | None,
) -> Issued:
    issuer = _loaded(authority.certificate)[0]
    issuer_key = serialization.load_pem_private_key(authority.key.encode(), None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise CertificatesInvalid("the CA key is not an EC key: create a new CA")
    key = _new_key(random_bytes)
    builder = (
        _builder(_name(subject), issuer.subject, key, now_ms, days, random_bytes)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False
        )
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return _issued(builder.sign(issuer_key, hashes.SHA256()), key, key_password)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now_ms: int,
    days: int,
    random_bytes: RandomBytes,
) -> x509.CertificateBuilder:
    if days < 1:
        raise CertificatesInvalid(f"a certificate cannot be valid for {days} days: use at least 1")
    # One bit is always set, so that the serial number is never 0.
    serial = int.from_bytes(random_bytes(_SERIAL_BYTES), "big") | 1 << (8 * _SERIAL_BYTES - 2)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(_EPOCH + timedelta(milliseconds=now_ms - EARLY_MS))
        .not_valid_after(_EPOCH + timedelta(milliseconds=now_ms + days * _DAY_MS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _new_key(random_bytes: RandomBytes) -> ec.EllipticCurvePrivateKey:
    number = int.from_bytes(random_bytes(_KEY_BYTES), "big") % (_GROUP_ORDER - 1) + 1
    return ec.derive_private_key(number, ec.SECP256R1())


def _issued(
    certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, password: str | None
) -> Issued:
    encryption: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(password.encode())
        if password
        else serialization.NoEncryption()
    )
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    return Issued(pem.decode("ascii"), encoded.decode("ascii"))


def _name(subject: Subject) -> x509.Name:
    """Returns the name with its least specific part first, as certificates have it."""
    parts = [
        (NameOID.COUNTRY_NAME, subject.country),
        (NameOID.ORGANIZATION_NAME, subject.organization),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, subject.unit),
        (NameOID.COMMON_NAME, subject.common_name),
    ]
    if not subject.common_name:
        raise CertificatesInvalid("the subject of a certificate needs a common name")
    try:
        return x509.Name([x509.NameAttribute(oid, text) for oid, text in parts if text])
    except ValueError as error:
        raise CertificatesInvalid(f"the subject {subject} is not valid: {error}") from error


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise CertificatesInvalid(
            f"{host!r} is neither an address nor a host name in ASCII: write an international "
            "name in its form that begins with xn--"
        ) from error


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
