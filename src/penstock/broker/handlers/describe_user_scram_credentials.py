"""DescribeUserScramCredentials, version 0: there is no SASL, so no user has credentials.

Without users in the request the answer is empty. A user that is named gets RESOURCE_NOT_FOUND, as
in Kafka, and DUPLICATE_RESOURCE if it is named twice.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.broker.handlers.admin_requests import repeated
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)


def handle(
    request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    context.require_cluster(AclOperation.DESCRIBE)
    names = [user.name for user in request.users or []]
    twice = repeated(names)
    response = DescribeUserScramCredentialsResponse(error_message=None)
    for name in dict.fromkeys(names):
        code = ErrorCode.DUPLICATE_RESOURCE if name in twice else ErrorCode.RESOURCE_NOT_FOUND
        response.results.append(
            DescribeUserScramCredentialsResponse.User(
                name, code, f"User '{name}': {code.message}. Penstock has no SCRAM credentials."
            )
        )
    return response
