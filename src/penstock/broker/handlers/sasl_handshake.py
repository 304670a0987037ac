"""SaslHandshake, versions 0 and 1, on a connection that needs no authentication.

The listener has no SASL, or the client is authenticated and its session does not expire. So there
is nothing to begin, and the answer is ILLEGAL_SASL_STATE, as in Kafka. `listeners.sasl_login`
answers the handshakes of clients that must authenticate.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import SaslHandshakeRequest, SaslHandshakeResponse


def handle(request: SaslHandshakeRequest, context: RequestContext) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
