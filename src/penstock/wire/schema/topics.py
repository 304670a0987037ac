"""Tables for topics and partitions, in the notation of `notation.py`."""

TABLE = """
CreateTopicsRequest  key 19  versions 2-7  flexible 5+
  Topics               [Topic]       0+
    Name               string        0+
    NumPartitions      int32         0+
    ReplicationFactor  int16         0+
    Assignments        [Assignment]  0+
      PartitionIndex   int32         0+
      BrokerIds        [int32]       0+
    Configs            [Config]      0+
      Name             string        0+
      Value            string?       0+
  timeoutMs            int32         0+  = 60000
  validateOnly         bool          1+

CreateTopicsResponse  key 19  versions 2-7  flexible 5+
  ThrottleTimeMs          int32      2+  ignorable
  Topics                  [Topic]    0+
    Name                  string     0+
    TopicId               uuid       7+  ignorable
    ErrorCode             int16      0+
    ErrorMessage          string?    1+  ignorable
    TopicConfigErrorCode  int16      5+  tag 0  ignorable
    NumPartitions         int32      5+  = -1  ignorable
    ReplicationFactor     int16      5+  = -1  ignorable
    Configs               [Config]?  5+  ignorable
      Name                string     5+
      Value               string?    5+
      ReadOnly            bool       5+
      ConfigSource        int8       5+  = -1  ignorable
      IsSensitive         bool       5+

DeleteTopicsRequest  key 20  versions 1-6  flexible 4+
  Topics      [Topic]   6+
    Name      string?   6+   = null
    TopicId   uuid      6+
  TopicNames  [string]  0-5  ignorable
  TimeoutMs   int32     0+

DeleteTopicsResponse  key 20  versions 1-6  flexible 4+
  ThrottleTimeMs  int32      1+  ignorable
  Responses       [Topic]    0+
    Name          string?6+  0+
    TopicId       uuid       6+  ignorable
    ErrorCode     int16      0+
    ErrorMessage  string?    5+  = null  ignorable

CreatePartitionsRequest  key 37  versions 0-3  flexible 2+
  Topics         [Topic]        0+
    Name         string         0+
    Count        int32          0+
    Assignments  [Assignment]?  0+
      BrokerIds  [int32]        0+
  TimeoutMs      int32          0+
  ValidateOnly   bool           0+

CreatePartitionsResponse  key 37  versions 0-3  flexible 2+
  ThrottleTimeMs  int32    0+
  Results         [Topic]  0+
    Name          string   0+
    ErrorCode     int16    0+
    ErrorMessage  string?  0+  = null

DeleteRecordsRequest  key 21  versions 0-2  flexible 2+
  Topics              [Topic]      0+
    Name              string       0+
    Partitions        [Partition]  0+
      PartitionIndex  int32        0+
      Offset          int64        0+
  TimeoutMs           int32        0+

DeleteRecordsResponse  key 21  versions 0-2  flexible 2+
  ThrottleTimeMs      int32        0+
  Topics              [Topic]      0+
    Name              string       0+
    Partitions        [Partition]  0+
      PartitionIndex  int32        0+
      LowWatermark    int64        0+
      ErrorCode       int16        0+
"""
