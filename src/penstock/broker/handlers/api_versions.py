"""ApiVersions, versions 0 to 4: which APIs this broker serves.

The first request of most clients, and the only one whose response header never has tags. From
version 3 on clients introduce themselves; a name that breaks Kafka's rule is refused, since it ends
up in logs and metrics. Versions below 4 cannot show features whose lowest version is 0; there are
none to show yet.
"""

from __future__ import annotations

import re

from penstock.broker.context import RequestContext
from penstock.wire.api import advertised
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ApiVersionsRequest, ApiVersionsResponse

_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    if context.version >= 3 and not (
        _NAME.fullmatch(request.client_software_name)
        and _NAME.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(api_keys=advertised(context.services.apis))
