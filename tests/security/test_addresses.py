"""Addresses have one spelling, and a client's network counts as one address."""

from __future__ import annotations

import pytest

from penstock.security.addresses import canonical, network_of, parse_limits, site_of


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


def test_limits_by_host_are_read() -> None:
    text = " host1:10, 10.0.0.7:20 ,::1:30,[2001:db8::0]:40,"
    assert parse_limits(text) == {"host1": 10, "10.0.0.7": 20, "::1": 30, "2001:db8::": 40}
    assert parse_limits("") == {}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("host1", "'host1' is not HOST:COUNT"),
        (":5", "':5' is not HOST:COUNT"),
        ("host1:-5", "'host1:-5' is not HOST:COUNT"),
        ("host1:٣", "is not HOST:COUNT"),
        ("10.0.0.7:1,::ffff:10.0.0.7:2", "10.0.0.7 has two limits"),
    ],
)
def test_limits_by_host_that_cannot_be_read_are_refused(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_limits(text)
