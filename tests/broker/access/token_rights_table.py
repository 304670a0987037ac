"""The cases of `rights_table` that concern delegation tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.access.rights_table import Case, K, Names, U, either, one
from penstock.security.acls import AclOperation as Op
from penstock.wire import messages as m
from penstock.wire.api import ApiKey

OPEN_VERSIONS: Final[Mapping[ApiKey, range]] = {ApiKey.CREATE_DELEGATION_TOKEN: range(1, 3)}
"""The versions of APIs that need no right: in these, a client creates tokens for itself only."""


def _create(names: Names, version: int) -> m.CreateDelegationTokenRequest:
    return m.CreateDelegationTokenRequest("User", names.topic, [], 60_000)


TOKEN_CASES: Final = (
    Case(
        "create a token for another user",
        ApiKey.CREATE_DELEGATION_TOKEN,
        _create,
        one((U, Op.CREATE_TOKENS)),
        range(3, 4),
    ),
    Case(
        "describe the tokens of others",
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        lambda names, version: m.DescribeDelegationTokenRequest(None),
        either((U, Op.DESCRIBE_TOKENS), (K, Op.DESCRIBE)),
        hidden=True,
    ),
    Case(
        "describe the tokens of one user",
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        lambda names, version: m.DescribeDelegationTokenRequest(
            [m.DescribeDelegationTokenRequest.Owner("User", names.topic)]
        ),
        either((K, Op.DESCRIBE), (U, Op.DESCRIBE_TOKENS)),
        hidden=True,
    ),
)
