"""Tests parsing of bootstrap addresses."""

from __future__ import annotations

import pytest

from penstock.client.address import Address, parse_bootstrap


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:9092", [Address("localhost", 9092)]),
        ("broker", [Address("broker", 9092)]),
        (" a:1 , b:2,", [Address("a", 1), Address("b", 2)]),
        ("[::1]:9093,[fe80::1]", [Address("::1", 9093), Address("fe80::1", 9092)]),
    ],
)
def test_addresses_are_parsed(text: str, addresses: list[Address]) -> None:
    """Several addresses, with and without port, IPv6 in brackets."""
    assert list(parse_bootstrap(text)) == addresses


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "no broker address"),
        (" , ", "no broker address"),
        (":9092", "has no host"),
        ("a:b", "no valid port"),
        ("a:0", "no valid port"),
        ("a:65536", "no valid port"),
        ("a:²", "no valid port"),
        ("::1", "in brackets"),
        ("[::1", r"write IPv6 as \[::1\]:9092"),
        ("[::1]9092", "write IPv6 as"),
    ],
)
def test_an_invalid_address_is_refused(text: str, hint: str) -> None:
    """The error shows the correct form."""
    with pytest.raises(ValueError, match=hint):
        parse_bootstrap(text)


def test_addresses_are_formatted_as_they_are_parsed() -> None:
    """A displayed address can be pasted into `--bootstrap`."""
    for address in (Address("localhost", 9092), Address("::1", 9093)):
        assert parse_bootstrap(str(address)) == (address,)
