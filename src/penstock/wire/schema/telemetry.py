"""Tables for the metrics of clients (KIP-714), in the notation of `notation.py`."""

TABLE = """
GetTelemetrySubscriptionsRequest  key 71  versions 0  flexible 0+
  ClientInstanceId  uuid  0+

GetTelemetrySubscriptionsResponse  key 71  versions 0  flexible 0+
  ThrottleTimeMs            int32     0+
  ErrorCode                 int16     0+
  ClientInstanceId          uuid      0+
  SubscriptionId            int32     0+
  AcceptedCompressionTypes  [int8]    0+
  PushIntervalMs            int32     0+
  TelemetryMaxBytes         int32     0+
  DeltaTemporality          bool      0+
  RequestedMetrics          [string]  0+

PushTelemetryRequest  key 72  versions 0  flexible 0+
  ClientInstanceId  uuid   0+
  SubscriptionId    int32  0+
  Terminating       bool   0+
  CompressionType   int8   0+
  Metrics           bytes  0+

PushTelemetryResponse  key 72  versions 0  flexible 0+
  ThrottleTimeMs  int32  0+
  ErrorCode       int16  0+
"""
