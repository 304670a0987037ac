"""The address of an etcd in a config file."""

from __future__ import annotations

import pytest

from penstock.stores.etcd_address import EtcdAddress, is_etcd, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("etcd://a", EtcdAddress(("a:2379",))),
        ("etcd://a:1,b:2,c", EtcdAddress(("a:1", "b:2", "c:2379"))),
        ("etcd://a/", EtcdAddress(("a:2379",))),
        ("etcd://a/prod", EtcdAddress(("a:2379",), "/prod")),
        ("etcd://a,b/teams/prod/", EtcdAddress(("a:2379", "b:2379"), "/teams/prod")),
        ("etcd://[::1]:1,[fe80::2]", EtcdAddress(("[::1]:1", "[fe80::2]:2379"))),
        (
            "etcd://a/x?ca=/ca.pem&cert=/c.pem&key=/k.pem",
            EtcdAddress(("a:2379",), "/x", "/ca.pem", "/c.pem", "/k.pem"),
        ),
        ("etcd://a?ca=ca.pem", EtcdAddress(("a:2379",), ca="ca.pem")),
        (
            "etcd://a?user=me&password_file=/p",
            EtcdAddress(("a:2379",), user="me", password_file="/p"),
        ),
        (
            "etcd://a/x?ca=/ca.pem&user=me%26you&password_env=ETCD_PASSWORD",
            EtcdAddress(("a:2379",), "/x", "/ca.pem", user="me&you", password_env="ETCD_PASSWORD"),
        ),
    ],
)
def test_an_address_names_members_a_namespace_and_files(text: str, address: EtcdAddress) -> None:
    """The default port is etcd's, and a slash at the end is ignored."""
    assert is_etcd(text)
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("http://a:2379", "etcd://HOST:PORT"),
        ("etcd://", "no etcd member"),
        ("etcd:///prod", "no etcd member"),
        ("etcd://a:x", "not HOST:PORT"),
        ("etcd://a:0", "not HOST:PORT"),
        ("etcd://a:70000", "not HOST:PORT"),
        ("etcd://:2379", "not HOST:PORT"),
        ("etcd://::1", "brackets"),
        ("etcd://a,a:2379", "twice"),
        ("etcd://me@a", "user=NAME&password_file=FILE"),
        ("etcd://a?user=me", "either password_file or password_env"),
        ("etcd://a?password_file=/p", "either password_file or password_env"),
        ("etcd://a?user=me&password_file=/p&password_env=P", "not both"),
        ("etcd://a?tls=1", "'tls'"),
        ("etcd://a?ca=", "one value"),
        ("etcd://a?ca=x&cert=y", "belong together"),
        ("etcd://a?cert=y&key=z", "ca too"),
    ],
)
def test_an_invalid_address_is_refused_with_the_right_form(text: str, hint: str) -> None:
    """The message says which part is wrong and what to write."""
    with pytest.raises(ValueError, match=hint):
        parse_address(text)


def test_an_address_is_shown_without_its_files() -> None:
    """Messages show only the members and the namespace."""
    assert str(parse_address("etcd://a:1,b/prod?ca=x")) == "etcd://a:1,b:2379/prod"


@pytest.mark.parametrize(
    "text",
    [
        "etcd://me:hunter2@a",
        "etcd://a,me:hunter2@b",
        "etcd://a?user=me&password=hunter2",
        "etcd://me:hunter2@a:x",
        "etcd://a:x?user=me&password=hunter2",
        "etcd://a?user=me&passwd=hunter2",
        "etcd://a?user=me&password_file=/p#hunter2",
    ],
)
def test_a_password_in_the_address_is_refused_and_not_repeated(text: str) -> None:
    """The error says where to put it instead, and does not contain it."""
    with pytest.raises(ValueError, match="etcd://") as caught:
        parse_address(text)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "is_local"),
    [
        ("etcd://127.0.0.1,[::1]:2379,localhost", True),
        ("etcd://127.0.0.1,10.0.0.1", False),
        ("etcd://etcd.example.com", False),
    ],
)
def test_an_address_is_local_if_all_members_are(text: str, is_local: bool) -> None:
    """Otherwise a password needs TLS."""
    assert parse_address(text).is_local is is_local
