"""Addresses of ZooKeeper in config files."""

from __future__ import annotations

import pytest

from penstock.stores import opening
from penstock.stores.zk_address import ZooKeeperAddress, is_zookeeper, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("zk://a", ZooKeeperAddress(("a:2181",))),
        ("zk://a:1,b,c:3/prod", ZooKeeperAddress(("a:1", "b:2181", "c:3"), "/prod")),
        ("zk://a/teams/one/", ZooKeeperAddress(("a:2181",), "/teams/one")),
        ("zk://[::1]:2182,[::2]", ZooKeeperAddress(("[::1]:2182", "[::2]:2181"))),
        (
            "zk://a/p?user=u&password_file=%2Fpw",
            ZooKeeperAddress(("a:2181",), "/p", user="u", password_file="/pw"),
        ),
        (
            "zk://a?ca=ca.pem&cert=c.pem&key=k.pem",
            ZooKeeperAddress(("a:2181",), ca="ca.pem", cert="c.pem", key="k.pem"),
        ),
    ],
)
def test_an_address_is_parsed(text: str, address: ZooKeeperAddress) -> None:
    assert is_zookeeper(text)
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("zk://", "names no member"),
        ("zk:///prod", "names no member"),
        ("zk://a,a:2181", "twice"),
        ("zk://a:0", "HOST:PORT"),
        ("zk://a:x", "HOST:PORT"),
        ("zk://::1", "brackets"),
        ("zk://me:secret@a", "password_file"),
        ("zk://a?password=secret", "password_file"),
        ("zk://a?tls=1", "there is no option 'tls'"),
        ("zk://a?user=u", "either password_file or password_env"),
        ("zk://a?password_env=P", "either password_file or password_env"),
        ("zk://a?user=u&password_env=P&password_file=F", "either password_file or password_env"),
        ("zk://a?user=u:v&password_env=P", "colon"),
        ("zk://a?cert=c", "give both"),
        ("zk://a?cert=c&key=k", "give ca too"),
        ("zk://a?ca=", "one value"),
        ("zk://a/b#c", "%23"),
        ("zk://a/b//c", "part of the namespace"),
        ("zk://a/../b", "part of the namespace"),
        ("zk://a/zookeeper", "part of the namespace"),
        ("etcd://a", "not a ZooKeeper address"),
    ],
)
def test_a_wrong_address_is_refused(text: str, problem: str) -> None:
    """The error says how it should look, and never contains a password."""
    with pytest.raises(ValueError, match=problem) as caught:
        parse_address(text)
    assert "secret" not in str(caught.value)


def test_errors_show_an_address_without_its_options() -> None:
    address = parse_address("zk://a,b:1/prod?user=u&password_file=pw")
    assert str(address) == opening.shown("zk://a/prod?user=u&password_file=pw").replace(
        "a:2181", "a:2181,b:1"
    )
    assert opening.shown("etcd://a/prod?user=u&password_file=pw") == "etcd://a:2379/prod"
    assert opening.shown("data/metadata.db") == "data/metadata.db"
    with pytest.raises(ValueError, match=r"zk://HOST:PORT") as caught:
        opening.shown("zookeeper://me:secret@a")
    assert "secret" not in str(caught.value)


def test_only_loopback_is_local() -> None:
    assert parse_address("zk://127.0.0.1:1,localhost,[::1]").is_local
    assert not parse_address("zk://127.0.0.1:1,zk2").is_local
