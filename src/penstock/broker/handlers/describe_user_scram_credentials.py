"""DescribeUserScramCredentials, version 0: the users with SCRAM credentials.

Without users in the request, all are described. Salts and keys are never told.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps
from penstock.broker.handlers.large_requests import answered
from penstock.security.acls import AclOperation
from penstock.security.scram_credentials import describe
from penstock.wire.messages import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)


def handle(
    request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse | asyncio.Future[DescribeUserScramCredentialsResponse]:
    context.require_cluster(AclOperation.DESCRIBE)
    count = max(len(request.users or ()), len(context.services.image.users.credentials))
    return answered(context, _described(request, context), count)


def _described(
    request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> Steps[DescribeUserScramCredentialsResponse]:
    users = None if request.users is None else [user.name for user in request.users]
    response = DescribeUserScramCredentialsResponse(error_message=None)
    for found in describe(context.services.image.users.credentials, users):
        yield
        response.results.append(
            DescribeUserScramCredentialsResponse.User(
                found.user,
                found.code,
                found.text,
                [
                    DescribeUserScramCredentialsResponse.Credential(mechanism, iterations)
                    for mechanism, iterations in found.credentials
                ],
            )
        )
    return response
