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
        ("etcd://me:pw@a", "certificate"),
        ("etcd://a?tls=1", "'tls'"),
        ("etcd://a?ca=", "one file"),
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
