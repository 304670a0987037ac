"""How errors of etcd are translated."""

from __future__ import annotations

import re

import pytest

from penstock.stores.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from penstock.stores.etcd_address import EtcdAddress
from penstock.stores.etcd_failures import judge

ADDRESS = EtcdAddress(("host:2379",), "/prod")
WITH_USER = EtcdAddress(("host:2379",), "/prod", user="penstock", password_file="/etc/password")


@pytest.mark.parametrize(
    ("status", "details", "kind", "try_others", "may_have_happened"),
    [
        ("UNAVAILABLE", "etcdserver: no leader", StoreUnavailable, True, False),
        ("UNAVAILABLE", "etcdserver: request timed out", StoreUnavailable, True, True),
        ("UNAVAILABLE", "etcdserver: leader changed", StoreUnavailable, True, True),
        ("UNAVAILABLE", "Socket closed", StoreUnavailable, True, True),
        ("DEADLINE_EXCEEDED", "", StoreUnavailable, True, True),
        ("UNKNOWN", "raft proposal dropped", StoreUnavailable, True, True),
        ("CANCELLED", "", StoreUnavailable, True, True),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", StoreBusy, False, False),
        (
            "RESOURCE_EXHAUSTED",
            "etcdserver: mvcc: database space exceeded",
            StoreFull,
            False,
            True,
        ),
        (
            "INVALID_ARGUMENT",
            "etcdserver: too many operations in txn request",
            StoreUnavailable,
            False,
            False,
        ),
        (
            "INVALID_ARGUMENT",
            "etcdserver: request is too large",
            StoreUnavailable,
            False,
            False,
        ),
        ("PERMISSION_DENIED", "etcdserver: permission denied", StoreRefused, False, False),
        ("NOT_FOUND", "etcdserver: requested lease not found", StoreUnavailable, False, False),
        ("DATA_LOSS", "etcdserver: corrupt cluster", StoreCorrupt, False, False),
    ],
)
def test_an_error_is_judged_by_its_status_and_details(
    status: str, details: str, kind: type[StoreError], try_others: bool, may_have_happened: bool
) -> None:
    """An operation that is not known to have failed may have happened. An error that another
    member would return too is not retried there."""
    verdict = judge(status, details, "host:2379", ADDRESS)
    assert type(verdict.error) is kind
    assert (verdict.try_others, verdict.may_have_happened) == (try_others, may_have_happened)
    assert "host:2379" in str(verdict.error)


@pytest.mark.parametrize(
    ("details", "advice"),
    [
        ("etcdserver: mvcc: database space exceeded", "defragment"),
        ("etcdserver: too many operations in txn request", "--max-txn-ops"),
        ("etcdserver: request is too large", "--max-request-bytes"),
        ("etcdserver: user name is empty", "certificate"),
    ],
)
def test_an_error_that_can_be_fixed_says_how(details: str, advice: str) -> None:
    """etcd's own message does not name the setting."""
    assert advice in str(judge("INVALID_ARGUMENT", details, "host:2379", ADDRESS).error)


@pytest.mark.parametrize(
    ("status", "details"),
    [
        ("UNAUTHENTICATED", "etcdserver: invalid auth token"),
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old"),
        ("UNKNOWN", "auth: revision in header is old"),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty"),
    ],
)
def test_a_token_that_etcd_does_not_accept_is_told_apart(status: str, details: str) -> None:
    """The request had no effect, and may succeed with a new token."""
    verdict = judge(status, details, "host:2379", WITH_USER)
    assert type(verdict.error) is StoreRefused
    assert verdict.token_invalid
    assert not verdict.may_have_happened


@pytest.mark.parametrize(
    ("address", "details", "advice"),
    [
        (ADDRESS, "permission denied", "user of this broker's certificate .* /prod/"),
        (ADDRESS, "user name is empty", "user and a password_file"),
        (WITH_USER, "permission denied", "'penstock' .*--prefix=true readwrite /prod/"),
        (WITH_USER, "authentication failed, invalid user ID", "/etc/password .* user 'penstock'"),
    ],
)
def test_denied_access_says_which_user_needs_what(
    address: EtcdAddress, details: str, advice: str
) -> None:
    """A running broker tries again, so that the operator can fix it without a restart."""
    verdict = judge("PERMISSION_DENIED", f"etcdserver: {details}", "host:2379", address)
    assert isinstance(verdict.error, StoreRefused)
    assert re.search(advice, str(verdict.error))
    assert verdict.error.retriable
