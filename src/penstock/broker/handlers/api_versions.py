"""ApiVersions, versions 0 to 4: lists the APIs this broker serves, and the cluster's features.

Most clients send it first, and it is the only API whose response header never has tags. From
version 3 on clients send their software name and version; one that breaks Kafka's naming rule is
refused, since it appears in logs and metrics.

The feature transaction.version 2 (`features`) goes together with Produce 12, TxnOffsetCommit 5 and
EndTxn 5: clients that do not see it as finalized use the versions before those. Versions below 4
cannot list a supported feature whose lowest level is 0.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.handlers.features import FEATURES
from penstock.wire.api import ApiKey, advertised
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ApiVersionsRequest, ApiVersionsResponse

_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FEATURES_EPOCH: Final = 1
"""Features never change while the cluster runs, so any constant works."""


def handle(request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    if context.version >= 3 and not (
        _NAME.fullmatch(request.client_software_name)
        and _NAME.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    apis = context.services.apis
    response = ApiVersionsResponse(api_keys=advertised(apis))
    if ApiKey.END_TXN in apis:
        response.finalized_features_epoch = _FEATURES_EPOCH
        response.finalized_features = [
            ApiVersionsResponse.FinalizedFeature(name, feature.level, feature.level)
            for name, feature in FEATURES.items()
        ]
        if context.version >= 4:
            response.supported_features = [
                ApiVersionsResponse.SupportedFeature(name, feature.level_min, feature.level_max)
                for name, feature in FEATURES.items()
            ]
    return response
