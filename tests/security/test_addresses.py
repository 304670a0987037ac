"""Addresses have one spelling, and a client's network counts as one address."""

from __future__ import annotations

import pytest

from penstock.security.addresses import canonical, network_of, site_of


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a name", "a name"),
    ],
)
def test_an_ipv6_network_counts_as_one_address(host: str, counted: str) -> None:
    assert network_of(host) == counted


def test_an_organization_counts_by_its_site() -> None:
    assert site_of("2001:db8:1:2:3:4:5:6") == "2001:db8:1::/48"
    assert site_of("10.0.0.1") == "10.0.0.1"


@pytest.mark.parametrize("host", ["2001:DB8:0:0::1", "2001:db8::1%eth0", "2001:0db8::0001"])
def test_an_address_has_one_spelling(host: str) -> None:
    assert canonical(host) == "2001:db8::1"


def test_a_name_is_no_address() -> None:
    with pytest.raises(ValueError, match="does not appear to be"):
        canonical("localhost")
