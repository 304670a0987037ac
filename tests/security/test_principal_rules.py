"""From the subject of a certificate to a user name."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID, ObjectIdentifier
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security.principal_rules import (
    NAME_CHARS_MAX,
    RULES_MAX,
    CertificateInvalid,
    PrincipalRefused,
    RulesInvalid,
    distinguished_name,
    parse_rules,
)

KEY = ec.derive_private_key(7, ec.SECP256R1())
Part = tuple[ObjectIdentifier, str] | tuple[ObjectIdentifier, str, _ASN1Type]
CN, ORG, EMAIL = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.EMAIL_ADDRESS


def _certificate(*levels: list[Part]) -> bytes:
    """Returns a certificate with this subject, the least specific level first."""
    name = x509.Name(
        x509.RelativeDistinguishedName([x509.NameAttribute(*part) for part in level])
        for level in levels
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([x509.NameAttribute(CN, "the issuer")]))
        .public_key(KEY.public_key())
        .serial_number(7)
        .not_valid_before(datetime(2024, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2034, 1, 1, tzinfo=UTC))
    )
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER)


# What Java 17 prints for each of these certificates.
PRINTED: list[tuple[list[list[Part]], str]] = [
    ([[(NameOID.COUNTRY_NAME, "CH")], [(ORG, "Acme, Inc")], [(CN, "alice")]],
     "CN=alice,O=Acme\\, Inc,C=CH"),
    ([[(CN, ' a"b\\c;<d>+e=f#g ')]], 'CN=\\ a\\"b\\\\c\\;\\<d\\>\\+e\\=f\\#g\\ '),
    ([[(CN, "#lead")], [(CN, "  ")]], "CN=\\ \\ ,CN=\\#lead"),
    ([[(CN, "\r a \r")]], "CN=\\\r\\ a\\ \\\r"),
    ([[(CN, "Zoë 日本 😀")]], "CN=Zoë 日本 😀"),
    ([[(EMAIL, "a@b.c")], [(CN, "x\0y\n")]],
     "CN=x\\00y\n,1.2.840.113549.1.9.1=#16056140622e63"),
    ([[(CN, "a"), (NameOID.USER_ID, "u1")], [(NameOID.DOMAIN_COMPONENT, "example")]],
     "DC=example,CN=a+UID=u1"),
    ([[(NameOID.STREET_ADDRESS, "s")], [(NameOID.STATE_OR_PROVINCE_NAME, "st")],
      [(NameOID.LOCALITY_NAME, "l")], [(NameOID.SERIAL_NUMBER, "12")], [(NameOID.SURNAME, "Doe")]],
     "2.5.4.4=#0c03446f65,2.5.4.5=#13023132,L=l,ST=st,STREET=s"),
    ([[(ObjectIdentifier("1.2.3.4.99999"), "x")]], "1.2.3.4.99999=#0c0178"),
    ([[(CN, "bmp", _ASN1Type.BMPString)]], "CN=\\00b\\00m\\00p"),
    ([[(CN, "univ", _ASN1Type.UniversalString)]], "CN=#1c10000000750000006e0000006900000076"),
    ([], ""),
]  # fmt: skip


@pytest.mark.parametrize(("levels", "printed"), PRINTED)
def test_a_subject_is_printed_as_java_prints_it(levels: list[list[Part]], printed: str) -> None:
    assert distinguished_name(_certificate(*levels)) == printed


@settings(max_examples=30, deadline=None)
@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_different_subjects_are_printed_differently(first: str, second: str) -> None:
    """A client cannot put the text of another attribute into its own."""
    try:
        names = [[_certificate([(ORG, "x")], [(CN, text)])] for text in (first, second)]
        combined = _certificate([(ORG, first)], [(CN, second)])
    except (ValueError, UnicodeEncodeError):
        return  # the library refuses such a name
    printed = [distinguished_name(name) for (name,) in names]
    assert (printed[0] == printed[1]) == (first == second)
    assert distinguished_name(combined).count("CN=") == 1


@pytest.mark.parametrize("data", [b"", b"\x30", b"\x30\x00", b"0\x84\xff\xff\xff\xff", b"hello"])
def test_bytes_that_are_no_certificate_are_refused(data: bytes) -> None:
    with pytest.raises(CertificateInvalid):
        distinguished_name(data)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_certificates_raise_only_the_expected_error(data: st.DataObject) -> None:
    damaged = bytearray(_certificate([(ORG, "Acme")], [(CN, "alice")]))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, 120))] = data.draw(st.integers(0, 255))
    try:
        name = distinguished_name(bytes(damaged))
    except CertificateInvalid:
        return
    assert len(name) <= NAME_CHARS_MAX


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", "CN=alice,O=Acme", "CN=alice,O=Acme"),
        ("RULE:^CN=(.*?),OU=people.*$/$1/", "CN=alice,OU=people,O=x", "alice"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?)$/$1@$2/L", "CN=Al,OU=Ex,O=y", "al@ex"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "O=x,cn=a.b,C=d", "A.B"),
        ("RULE:no/x/,RULE:CN=(.*)/$1/ , DEFAULT", "CN=a,b", "a,b"),
        (" RULE:CN=([^,]+),.*/u-$1/ ,, DEFAULT ", "O=a", "O=a"),
        (r"RULE:CN=(.*)\/(.*)/$2\/$1/", "CN=a/b", "b/a"),
        (r"RULE:CN=(.*)/\$1$0/", "CN=a", "$1CN=a"),
        ("RULE:CN=([^,]*),.*/$1-$12-$9/", "CN=a,O=b", "a-a2-$9"),
        ("RULE:(?:CN=(a)|CN=(b))/[$1$2]/", "CN=b", "[b]"),
        # Kafka matches the whole name, but then replaces every match that it finds.
        ("RULE:CN=(.*?),.*?/$1/", "CN=alice,OU=x", "aliceOU=x"),
        ("RULE:.*/admin/", "CN=a", "adminadmin"),
        ("RULE:(.*)?/<$1>/", "ab", "<ab><>"),
    ],
)
def test_the_first_rule_that_matches_makes_the_user(rules: str, name: str, user: str) -> None:
    assert parse_rules(rules).user(name) == user


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("RULE:CN=(.*),OU=people/$1/", "CN=alice,OU=people,O=x"),
        ("RULE:alice/admin/", "CN=alice"),
        ("RULE:^CN=(.*)$/$1/", "CN=a\nCN=b"),
        ("RULE:CN=(.*)/$1/", "CN="),
        ("DEFAULT", ""),
        ("DEFAULT", "C" * (NAME_CHARS_MAX + 1)),
        ("RULE:.*(.*)/$0$0$0$0$0/", "C" * NAME_CHARS_MAX),
        ("RULE:(?:.*,.*){90}/x/", "," * NAME_CHARS_MAX),
    ],
)
def test_a_client_without_a_user_name_is_refused(rules: str, name: str) -> None:
    with pytest.raises(PrincipalRefused):
        parse_rules(rules).user(name)


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("", "has no rule"),
        (" , ", "has no rule"),
        ("default", "is not a rule"),
        ("DEFAULTS", "follows a rule"),
        ("RULE:a", "has no '/'"),
        ("RULE:a/b", "has no '/'"),
        (r"RULE:a/b\/", "has no '/'"),
        ("RULE:a/b/X", "follows a rule"),
        ("RULE:a/b/L DEFAULT", "follows a rule"),
        ("RULE:(a/b/", r"no '\)'"),
        ("RULE:(a*)*/b/", "can match nothing"),
        ("RULE:a/$1/", "number of a group"),
        ("RULE:(a)/$x/", "number of a group"),
        ("RULE:(a)/${name}/", "number of a group"),
        ("DEFAULT," * (RULES_MAX + 1), "more than"),
    ],
)
def test_invalid_rules_are_refused_when_they_are_read(rules: str, problem: str) -> None:
    with pytest.raises(RulesInvalid, match=problem):
        parse_rules(rules)
