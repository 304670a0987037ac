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
    SUBJECT_BYTES_MAX,
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
    ([[(CN, "univ", _ASN1Type.UniversalString)]], "CN=#1c10000000750000006e0000006900000076"),
    ([], ""),
]  # fmt: skip


@pytest.mark.parametrize(("levels", "printed"), PRINTED)
def test_a_subject_is_printed_as_java_prints_it(levels: list[list[Part]], printed: str) -> None:
    assert distinguished_name(_certificate(*levels)) == printed


def _replaced(text: str, of_type: _ASN1Type, body: bytes) -> bytes:
    """Returns a certificate whose common name has these bytes instead of the text."""
    assert len(text) == len(body)
    return _certificate([(CN, text, of_type)]).replace(text.encode(), body)


def test_text_in_utf_16_does_not_become_the_user_that_its_bytes_spell() -> None:
    """Java prints these Chinese characters as `kafka-admin1`."""
    text = b"kafka-admin1".decode("utf-16-be")
    printed = distinguished_name(_certificate([(CN, text, _ASN1Type.BMPString)]))
    assert printed == f"CN=#1e0c{b'kafka-admin1'.hex()}"


@pytest.mark.parametrize(
    ("of_type", "tag"), [(_ASN1Type.T61String, 0x14), (_ASN1Type.UTF8String, 0x1B)]
)
def test_text_in_an_old_character_set_is_printed_as_its_bytes(of_type: _ASN1Type, tag: int) -> None:
    """So names that differ in one byte stay different."""
    printed = set()
    for body in (b"m\xfcller", b"m\xf6ller"):
        certificate = _replaced("mxller", of_type, body)
        old_type = bytes((of_type.value, len(body)))
        certificate = certificate.replace(old_type + body, bytes((tag, len(body))) + body)
        printed.add(distinguished_name(certificate))
    assert printed == {f"CN=#{tag:02x}066d{byte}6c6c6572" for byte in ("fc", "f6")}


@pytest.mark.parametrize(
    ("of_type", "body"),
    [
        (_ASN1Type.UTF8String, b"m\xfcller"),
        (_ASN1Type.UTF8String, b"m\xc1\xa1lle"),  # two bytes for a letter that needs one
        (_ASN1Type.UTF8String, b"m\xed\xa0\x80ll"),  # half of a pair
        (_ASN1Type.PrintableString, "müler".encode()),
        (_ASN1Type.IA5String, b"m\xfcller"),
    ],
)
def test_text_that_is_not_valid_for_its_type_is_refused(of_type: _ASN1Type, body: bytes) -> None:
    with pytest.raises(CertificateInvalid, match="CN that is not valid"):
        distinguished_name(_replaced("mxller", of_type, body))


@pytest.mark.parametrize(
    "oid", [b"\x80\x04\x03", b"\x55\x80\x03", b"\x55\x04\x83"], ids=["first", "second", "last"]
)
def test_the_type_of_an_attribute_has_only_one_encoding(oid: bytes) -> None:
    certificate = _certificate([(ORG, "x")])
    damaged = certificate.replace(b"\x06\x03\x55\x04\x0a", b"\x06\x03" + oid)
    with pytest.raises(CertificateInvalid, match="invalid attribute type"):
        distinguished_name(damaged)


def test_a_subject_that_is_too_large_is_refused() -> None:
    longest = 64  # the library refuses longer values
    levels: list[list[Part]] = [[(ORG, "o" * longest)]] * (SUBJECT_BYTES_MAX // longest)
    with pytest.raises(CertificateInvalid, match="shorten it"):
        distinguished_name(_certificate(*levels))


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
        ("RULE:(.)*(b)?/$1$2$2/", "C" * (NAME_CHARS_MAX - 1) + "\n"),
    ],
)
def test_a_client_without_a_user_name_is_refused(rules: str, name: str) -> None:
    with pytest.raises(PrincipalRefused):
        parse_rules(rules).user(name)


@pytest.mark.parametrize(
    ("case", "name"),
    [("L", "CN=\u212aafka"), ("U", "CN=adm\u0131n"), ("U", "CN=\u017fuper"), ("L", "CN=\u0130"),
     ("U", "CN=stra\u00dfe"), ("L", "CN=Zo\u00eb")],
)  # fmt: skip
def test_a_change_of_case_does_not_make_another_user(case: str, name: str) -> None:
    """The lower case of the Kelvin sign is `k`; the upper case of a dotless i is `I`."""
    with pytest.raises(PrincipalRefused, match="only for ASCII names"):
        parse_rules(f"RULE:CN=(.*)/$1/{case}").user(name)
    assert parse_rules("RULE:CN=(.*)/$1/").user(name) == name.removeprefix("CN=")


def test_a_change_of_case_concerns_only_the_user_name() -> None:
    rules = parse_rules("RULE:CN=([^,]*),.*/$1/L")
    assert rules.user("CN=Alice,O=Z\u00fcrich AG") == "alice"


SIX_GROUPS = "^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)"


def test_all_rules_share_the_steps_of_one_client() -> None:
    """One such rule is within the limit, ten are not."""
    name = ("CN=" + ",OU=,O=,L=,ST=,C=" * 100)[:600]
    one = f"RULE:{SIX_GROUPS},X$/$1/L"
    assert parse_rules(f"{one},DEFAULT").user(name) == name
    with pytest.raises(PrincipalRefused, match="fewer or simpler patterns"):
        parse_rules(",".join([one] * 10 + ["DEFAULT"])).user(name)


def test_ten_rules_with_many_groups_are_within_the_limit_for_an_ordinary_name() -> None:
    other = ",".join(f"RULE:{SIX_GROUPS},X{number}$/$1/L" for number in range(9))
    rules = parse_rules(f"{other},RULE:{SIX_GROUPS}$/$1@$2/L")
    name = "CN=Alice.Smith,OU=Platform Engineering,O=Acme Incorporated,L=Lausanne,ST=Vaud,C=CH"
    assert rules.user(name) == "alice.smith@platform engineering"


def test_an_ordinary_rule_is_within_the_limit_for_the_longest_name() -> None:
    user = "a" * (NAME_CHARS_MAX - len("CN=,OU=people"))
    rules = parse_rules("RULE:^CN=(.*?),OU=people.*$/$1/L,DEFAULT")
    assert rules.user(f"CN={user},OU=people") == user


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
