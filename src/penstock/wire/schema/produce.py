"""Tables for producing records, in the notation of `notation.py`."""

TABLE = """
ProduceRequest  key 0  versions 3-13  flexible 9+
  TransactionalId  string?      3+    = null
  Acks             int16        0+
  TimeoutMs        int32        0+
  TopicData        [Topic]      0+
    Name           string       0-12  ignorable
    TopicId        uuid         13+   ignorable
    PartitionData  [Partition]  0+
      Index        int32        0+
      Records      records?     0+

ProduceResponse  key 0  versions 3-13  flexible 9+
  Responses                     [Topic]         0+
    Name                        string          0-12  ignorable
    TopicId                     uuid            13+   ignorable
    PartitionResponses          [Partition]     0+
      Index                     int32           0+
      ErrorCode                 int16           0+
      BaseOffset                int64           0+
      LogAppendTimeMs           int64           2+    = -1  ignorable
      LogStartOffset            int64           5+    = -1  ignorable
      RecordErrors              [RecordError]   8+    ignorable
        BatchIndex              int32           8+
        BatchIndexErrorMessage  string?         8+    = null
      ErrorMessage              string?         8+    = null  ignorable
      CurrentLeader             Leader          10+   tag 0
        LeaderId                int32           10+   = -1
        LeaderEpoch             int32           10+   = -1
  ThrottleTimeMs                int32           1+    ignorable
  NodeEndpoints                 [NodeEndpoint]  10+   tag 0
    NodeId                      int32           10+
    Host                        string          10+
    Port                        int32           10+
    Rack                        string?         10+   = null
"""
