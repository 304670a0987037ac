"""AlterUserScramCredentials, version 0: there is no SASL, so no credentials are stored.

A deletion gets RESOURCE_NOT_FOUND and an upsertion UNSUPPORTED_SASL_MECHANISM, once per user.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)


def handle(
    request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    context.require_cluster(AclOperation.ALTER)
    codes = {each.name: ErrorCode.RESOURCE_NOT_FOUND for each in request.deletions}
    for each in request.upsertions:
        codes[each.name] = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResponse.User(
                name,
                code,
                "Penstock does not support SASL: it neither stores nor checks credentials.",
            )
            for name, code in codes.items()
        ]
    )


def refuse(
    request: AlterUserScramCredentialsRequest, version: int, code: ErrorCode
) -> AlterUserScramCredentialsResponse:
    deleted = [each.name for each in request.deletions]
    names = dict.fromkeys([*deleted, *(each.name for each in request.upsertions)])
    return AlterUserScramCredentialsResponse(
        results=[AlterUserScramCredentialsResponse.User(name, code, code.message) for name in names]
    )
