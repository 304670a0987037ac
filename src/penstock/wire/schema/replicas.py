"""Tables for who leads partitions and where replicas live, in the notation of `notation.py`."""

TABLE = """
ElectLeadersRequest  key 43  versions 0-2  flexible 2+
  ElectionType     int8      1+
  TopicPartitions  [Topic]?  0+
    Topic          string    0+
    Partitions     [int32]   0+
  TimeoutMs        int32     0+  = 60000

ElectLeadersResponse  key 43  versions 0-2  flexible 2+
  ThrottleTimeMs          int32        0+
  ErrorCode               int16        1+
  ReplicaElectionResults  [Topic]      0+
    Topic                 string       0+
    PartitionResult       [Partition]  0+
      PartitionId         int32        0+
      ErrorCode           int16        0+
      ErrorMessage        string?      0+

AlterPartitionReassignmentsRequest  key 45  versions 0-1  flexible 0+
  TimeoutMs                     int32        0+  = 60000
  AllowReplicationFactorChange  bool         1+  = true
  Topics                        [Topic]      0+
    Name                        string       0+
    Partitions                  [Partition]  0+
      PartitionIndex            int32        0+
      Replicas                  [int32]?     0+  = null

AlterPartitionReassignmentsResponse  key 45  versions 0-1  flexible 0+
  ThrottleTimeMs                int32        0+
  AllowReplicationFactorChange  bool         1+  = true  ignorable
  ErrorCode                     int16        0+
  ErrorMessage                  string?      0+
  Responses                     [Topic]      0+
    Name                        string       0+
    Partitions                  [Partition]  0+
      PartitionIndex            int32        0+
      ErrorCode                 int16        0+
      ErrorMessage              string?      0+

ListPartitionReassignmentsRequest  key 46  versions 0  flexible 0+
  TimeoutMs           int32     0+  = 60000
  Topics              [Topic]?  0+  = null
    Name              string    0+
    PartitionIndexes  [int32]   0+

ListPartitionReassignmentsResponse  key 46  versions 0  flexible 0+
  ThrottleTimeMs        int32        0+
  ErrorCode             int16        0+
  ErrorMessage          string?      0+
  Topics                [Topic]      0+
    Name                string       0+
    Partitions          [Partition]  0+
      PartitionIndex    int32        0+
      Replicas          [int32]      0+
      AddingReplicas    [int32]      0+
      RemovingReplicas  [int32]      0+

DescribeLogDirsRequest  key 35  versions 1-5  flexible 2+
  Topics        [Topic]?  0+
    Topic       string    0+
    Partitions  [int32]   0+

DescribeLogDirsResponse  key 35  versions 1-5  flexible 2+
  ThrottleTimeMs        int32        0+
  ErrorCode             int16        3+  ignorable
  Results               [LogDir]     0+
    ErrorCode           int16        0+
    LogDir              string       0+
    Topics              [Topic]      0+
      Name              string       0+
      Partitions        [Partition]  0+
        PartitionIndex  int32        0+
        PartitionSize   int64        0+
        OffsetLag       int64        0+
        IsFutureKey     bool         0+
    TotalBytes          int64        4+  = -1  ignorable
    UsableBytes         int64        4+  = -1  ignorable
    IsCordoned          bool         5+  ignorable

AlterReplicaLogDirsRequest  key 34  versions 1-2  flexible 2+
  Dirs            [Dir]    0+
    Path          string   0+
    Topics        [Topic]  0+
      Name        string   0+
      Partitions  [int32]  0+

AlterReplicaLogDirsResponse  key 34  versions 1-2  flexible 2+
  ThrottleTimeMs      int32        0+
  Results             [Topic]      0+
    TopicName         string       0+
    Partitions        [Partition]  0+
      PartitionIndex  int32        0+
      ErrorCode       int16        0+
"""
