"""Tables for reading records and finding offsets, in the notation of `notation.py`."""

TABLE = """
FetchRequest  key 1  versions 4-18  flexible 12+
  ClusterId               string?           12+   tag 0  = null  ignorable
  ReplicaId               int32             0-14  = -1
  ReplicaState            ReplicaState      15+   tag 1
    ReplicaId             int32             15+   = -1
    ReplicaEpoch          int64             15+   = -1
  MaxWaitMs               int32             0+
  MinBytes                int32             0+
  MaxBytes                int32             3+    = 2147483647  ignorable
  IsolationLevel          int8              4+    ignorable
  SessionId               int32             7+    ignorable
  SessionEpoch            int32             7+    = -1  ignorable
  Topics                  [Topic]           0+
    Topic                 string            0-12  ignorable
    TopicId               uuid              13+   ignorable
    Partitions            [Partition]       0+
      Partition           int32             0+
      CurrentLeaderEpoch  int32             9+    = -1  ignorable
      FetchOffset         int64             0+
      LastFetchedEpoch    int32             12+   = -1
      LogStartOffset      int64             5+    = -1  ignorable
      PartitionMaxBytes   int32             0+
      ReplicaDirectoryId  uuid              17+   tag 0  ignorable
      HighWatermark       int64             18+   tag 1  = 9223372036854775807  ignorable
  ForgottenTopicsData     [ForgottenTopic]  7+
    Topic                 string            7-12  ignorable
    TopicId               uuid              13+   ignorable
    Partitions            [int32]           7+
  RackId                  string            11+   ignorable

FetchResponse  key 1  versions 4-18  flexible 12+
  ThrottleTimeMs            int32                  1+    ignorable
  ErrorCode                 int16                  7+    ignorable
  SessionId                 int32                  7+
  Responses                 [Topic]                0+
    Topic                   string                 0-12  ignorable
    TopicId                 uuid                   13+   ignorable
    Partitions              [Partition]            0+
      PartitionIndex        int32                  0+
      ErrorCode             int16                  0+
      HighWatermark         int64                  0+
      LastStableOffset      int64                  4+    = -1  ignorable
      LogStartOffset        int64                  5+    = -1  ignorable
      DivergingEpoch        DivergingEpoch         12+   tag 0
        Epoch               int32                  12+   = -1
        EndOffset           int64                  12+   = -1
      CurrentLeader         Leader                 12+   tag 1
        LeaderId            int32                  12+   = -1
        LeaderEpoch         int32                  12+   = -1
      SnapshotId            SnapshotId             12+   tag 2
        EndOffset           int64                  0+    = -1
        Epoch               int32                  0+    = -1
      AbortedTransactions   [AbortedTransaction]?  4+    ignorable
        ProducerId          int64                  4+
        FirstOffset         int64                  4+
      PreferredReadReplica  int32                  11+   = -1
      Records               records?               0+
  NodeEndpoints             [NodeEndpoint]         16+   tag 0
    NodeId                  int32                  16+
    Host                    string                 16+
    Port                    int32                  16+
    Rack                    string?                16+   = null

ListOffsetsRequest  key 2  versions 1-11  flexible 6+
  ReplicaId               int32        0+
  IsolationLevel          int8         2+
  Topics                  [Topic]      0+
    Name                  string       0+
    Partitions            [Partition]  0+
      PartitionIndex      int32        0+
      CurrentLeaderEpoch  int32        4+   = -1  ignorable
      Timestamp           int64        0+
  TimeoutMs               int32        10+  ignorable

ListOffsetsResponse  key 2  versions 1-11  flexible 6+
  ThrottleTimeMs      int32        2+  ignorable
  Topics              [Topic]      0+
    Name              string       0+
    Partitions        [Partition]  0+
      PartitionIndex  int32        0+
      ErrorCode       int16        0+
      Timestamp       int64        1+  = -1
      Offset          int64        1+  = -1
      LeaderEpoch     int32        4+  = -1

OffsetForLeaderEpochRequest  key 23  versions 2-4  flexible 4+
  ReplicaId               int32        3+  = -2  ignorable
  Topics                  [Topic]      0+
    Topic                 string       0+
    Partitions            [Partition]  0+
      Partition           int32        0+
      CurrentLeaderEpoch  int32        2+  = -1  ignorable
      LeaderEpoch         int32        0+

OffsetForLeaderEpochResponse  key 23  versions 2-4  flexible 4+
  ThrottleTimeMs   int32        2+  ignorable
  Topics           [Topic]      0+
    Topic          string       0+
    Partitions     [Partition]  0+
      ErrorCode    int16        0+
      Partition    int32        0+
      LeaderEpoch  int32        1+  = -1  ignorable
      EndOffset    int64        0+  = -1
"""
