"""SaslAuthenticate, versions 0 to 2, on a connection that needs no authentication.

The answer is ILLEGAL_SASL_STATE, as in Kafka. `listeners.sasl_login` answers the tokens of clients
that must authenticate.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import SaslAuthenticateRequest, SaslAuthenticateResponse


def handle(request: SaslAuthenticateRequest, context: RequestContext) -> SaslAuthenticateResponse:
    code = ErrorCode.ILLEGAL_SASL_STATE
    return SaslAuthenticateResponse(
        error_code=code,
        error_message="This connection needs no authentication: send SaslAuthenticate only after a "
        "SaslHandshake on a listener with SASL.",
    )
