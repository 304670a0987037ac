"""Tables for committed offsets, in the notation of `notation.py`."""

TABLE = """
OffsetCommitRequest  key 8  versions 2-10  flexible 8+
  GroupId                    string       0+
  GenerationIdOrMemberEpoch  int32        1+   = -1  ignorable
  MemberId                   string       1+   ignorable
  GroupInstanceId            string?      7+   = null
  RetentionTimeMs            int64        2-4  = -1  ignorable
  Topics                     [Topic]      0+
    Name                     string       0-9  ignorable
    TopicId                  uuid         10+  ignorable
    Partitions               [Partition]  0+
      PartitionIndex         int32        0+
      CommittedOffset        int64        0+
      CommittedLeaderEpoch   int32        6+   = -1  ignorable
      CommittedMetadata      string?      0+

OffsetCommitResponse  key 8  versions 2-10  flexible 8+
  ThrottleTimeMs      int32        3+   ignorable
  Topics              [Topic]      0+
    Name              string       0-9  ignorable
    TopicId           uuid         10+  ignorable
    Partitions        [Partition]  0+
      PartitionIndex  int32        0+
      ErrorCode       int16        0+

OffsetFetchRequest  key 9  versions 1-10  flexible 6+
  GroupId               string         0-7
  Topics                [Topic]?2-7    0-7
    Name                string         0-7
    PartitionIndexes    [int32]        0-7
  Groups                [Group]        8+
    GroupId             string         8+
    MemberId            string?        9+   = null  ignorable
    MemberEpoch         int32          9+   = -1  ignorable
    Topics              [GroupTopic]?  8+
      Name              string         8-9  ignorable
      TopicId           uuid           10+  ignorable
      PartitionIndexes  [int32]        8+
  RequireStable         bool           7+

OffsetFetchResponse  key 9  versions 1-10  flexible 6+
  ThrottleTimeMs              int32             3+   ignorable
  Topics                      [Topic]           0-7
    Name                      string            0-7
    Partitions                [Partition]       0-7
      PartitionIndex          int32             0-7
      CommittedOffset         int64             0-7
      CommittedLeaderEpoch    int32             5-7  = -1  ignorable
      Metadata                string?           0-7
      ErrorCode               int16             0-7
  ErrorCode                   int16             2-7  ignorable
  Groups                      [Group]           8+
    GroupId                   string            8+
    Topics                    [GroupTopic]      8+
      Name                    string            8-9  ignorable
      TopicId                 uuid              10+  ignorable
      Partitions              [GroupPartition]  8+
        PartitionIndex        int32             8+
        CommittedOffset       int64             8+
        CommittedLeaderEpoch  int32             8+   = -1  ignorable
        Metadata              string?           8+
        ErrorCode             int16             8+
    ErrorCode                 int16             8+

OffsetDeleteRequest  key 47  versions 0  flexible never
  GroupId             string       0+
  Topics              [Topic]      0+
    Name              string       0+
    Partitions        [Partition]  0+
      PartitionIndex  int32        0+

OffsetDeleteResponse  key 47  versions 0  flexible never
  ErrorCode           int16        0+
  ThrottleTimeMs      int32        0+  ignorable
  Topics              [Topic]      0+
    Name              string       0+
    Partitions        [Partition]  0+
      PartitionIndex  int32        0+
      ErrorCode       int16        0+
"""
