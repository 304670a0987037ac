"""AlterUserScramCredentials, version 0: sets and deletes the SCRAM credentials of users (KIP-554).

A client derives the salted password itself, so the broker never gets a password. The users of a
request are independent of each other: an error of one does not affect the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final

from penstock.broker.context import RequestContext
from penstock.metadata.users import alter_users
from penstock.security.acls import AclOperation
from penstock.security.scram_credentials import Deletion, Upsertion, UserResult
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)

USERS_PER_COMMIT: Final = 50
"""A user may have two mechanisms, and etcd accepts 128 operations in a transaction."""


def handle(
    request: AlterUserScramCredentialsRequest, context: RequestContext
) -> asyncio.Future[AlterUserScramCredentialsResponse]:
    context.require_cluster(AclOperation.ALTER)
    return context.spawn(_alter(request, context))


async def _alter(
    request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    deletions = [Deletion(each.name, each.mechanism) for each in request.deletions]
    upsertions = [
        Upsertion(
            each.name,
            each.mechanism,
            each.iterations,
            bytes(each.salt),
            bytes(each.salted_password),
        )
        for each in request.upsertions
    ]
    names = [each.user for each in deletions] + [each.user for each in upsertions]
    names = list(dict.fromkeys(names))
    results: list[UserResult] = []
    # A deletion that finds no credential is not committed, so the store does not refuse it if this
    # broker's image is old: an administrator would believe that the user cannot log in.
    await context.services.cluster.catch_up_shared()
    for start in range(0, len(names), USERS_PER_COMMIT):
        some = frozenset(names[start : start + USERS_PER_COMMIT])
        results += await context.services.controller.decide(
            partial(
                alter_users,
                deletions=[each for each in deletions if each.user in some],
                upsertions=[each for each in upsertions if each.user in some],
            )
        )
    return _answer(results)


def _answer(results: Iterable[UserResult]) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResponse.User(each.user, each.code, each.text)
            for each in results
        ]
    )


def refuse(
    request: AlterUserScramCredentialsRequest, version: int, code: ErrorCode
) -> AlterUserScramCredentialsResponse:
    deleted = [each.name for each in request.deletions]
    names = dict.fromkeys([*deleted, *(each.name for each in request.upsertions)])
    return _answer(UserResult(name, code, code.message) for name in names)
