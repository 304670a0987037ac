"""Tables for how much share groups have to do on a leader, in the notation of `notation.py`.

The API is Penstock's own. Kafka has the same numbers as metrics only, so its clients cannot ask for
them.
"""

TABLE = """
DescribeQueueRequest  key 10006  versions 0  flexible 0+
  GroupId            string       0+
  Topics             [Topic]      0+
    TopicName        string       0+
    Partitions       [Partition]  0+
      PartitionIndex int32        0+
      StartOffset    int64        0+  = -1

DescribeQueueResponse  key 10006  versions 0  flexible 0+
  ThrottleTimeMs     int32        0+
  ErrorCode          int16        0+
  ErrorMessage       string?      0+  = null
  Topics             [Topic]      0+
    TopicName        string       0+
    Partitions       [Partition]  0+
      PartitionIndex int32        0+
      ErrorCode      int16        0+
      Backlog        int64        0+  = -1
      InFlight       int64        0+
      Redelivered    int64        0+  = -1
      OldestMs       int64        0+  = -1
      Scheduled      int64        0+  = -1  tag 0  ignorable
"""
