"""Tables for consumer groups, in the notation of `notation.py`."""

TABLE = """
FindCoordinatorRequest  key 10  versions 0-6  flexible 3+
  Key              string    0-3
  KeyType          int8      1+
  CoordinatorKeys  [string]  4+

FindCoordinatorResponse  key 10  versions 0-6  flexible 3+
  ThrottleTimeMs  int32          1+   ignorable
  ErrorCode       int16          0-3
  ErrorMessage    string?        1-3  ignorable
  NodeId          int32          0-3
  Host            string         0-3
  Port            int32          0-3
  Coordinators    [Coordinator]  4+
    Key           string         4+
    NodeId        int32          4+
    Host          string         4+
    Port          int32          4+
    ErrorCode     int16          4+
    ErrorMessage  string?        4+   ignorable

JoinGroupRequest  key 11  versions 0-9  flexible 6+
  GroupId             string      0+
  SessionTimeoutMs    int32       0+
  RebalanceTimeoutMs  int32       1+  = -1  ignorable
  MemberId            string      0+
  GroupInstanceId     string?     5+  = null
  ProtocolType        string      0+
  Protocols           [Protocol]  0+
    Name              string      0+
    Metadata          bytes       0+
  Reason              string?     8+  = null  ignorable

JoinGroupResponse  key 11  versions 0-9  flexible 6+
  ThrottleTimeMs     int32      2+  ignorable
  ErrorCode          int16      0+
  GenerationId       int32      0+  = -1
  ProtocolType       string?    7+  = null  ignorable
  ProtocolName       string?7+  0+
  Leader             string     0+
  SkipAssignment     bool       9+
  MemberId           string     0+
  Members            [Member]   0+
    MemberId         string     0+
    GroupInstanceId  string?    5+  = null  ignorable
    Metadata         bytes      0+

SyncGroupRequest  key 14  versions 0-5  flexible 4+
  GroupId          string        0+
  GenerationId     int32         0+
  MemberId         string        0+
  GroupInstanceId  string?       3+  = null
  ProtocolType     string?       5+  = null  ignorable
  ProtocolName     string?       5+  = null  ignorable
  Assignments      [Assignment]  0+
    MemberId       string        0+
    Assignment     bytes         0+

SyncGroupResponse  key 14  versions 0-5  flexible 4+
  ThrottleTimeMs  int32    1+  ignorable
  ErrorCode       int16    0+
  ProtocolType    string?  5+  = null  ignorable
  ProtocolName    string?  5+  = null  ignorable
  Assignment      bytes    0+

HeartbeatRequest  key 12  versions 0-4  flexible 4+
  GroupId          string   0+
  GenerationId     int32    0+
  MemberId         string   0+
  GroupInstanceId  string?  3+  = null

HeartbeatResponse  key 12  versions 0-4  flexible 4+
  ThrottleTimeMs  int32  1+  ignorable
  ErrorCode       int16  0+

LeaveGroupRequest  key 13  versions 0-5  flexible 4+
  GroupId            string    0+
  MemberId           string    0-2
  Members            [Member]  3+
    MemberId         string    3+
    GroupInstanceId  string?   3+   = null
    Reason           string?   5+   = null  ignorable

LeaveGroupResponse  key 13  versions 0-5  flexible 4+
  ThrottleTimeMs     int32     1+  ignorable
  ErrorCode          int16     0+
  Members            [Member]  3+
    MemberId         string    3+
    GroupInstanceId  string?   3+
    ErrorCode        int16     3+

ConsumerGroupHeartbeatRequest  key 68  versions 0-1  flexible 0+
  GroupId               string              0+
  MemberId              string              0+
  MemberEpoch           int32               0+
  InstanceId            string?             0+  = null
  RackId                string?             0+  = null
  RebalanceTimeoutMs    int32               0+  = -1
  SubscribedTopicNames  [string]?           0+  = null
  SubscribedTopicRegex  string?             1+  = null
  ServerAssignor        string?             0+  = null
  TopicPartitions       [TopicPartitions]?  0+  = null
    TopicId             uuid                0+
    Partitions          [int32]             0+

ConsumerGroupHeartbeatResponse  key 68  versions 0-1  flexible 0+
  ThrottleTimeMs       int32              0+
  ErrorCode            int16              0+
  ErrorMessage         string?            0+  = null
  MemberId             string?            0+  = null
  MemberEpoch          int32              0+
  HeartbeatIntervalMs  int32              0+
  Assignment           Assignment?        0+  = null
    TopicPartitions    [TopicPartitions]  0+
      TopicId          uuid               0+
      Partitions       [int32]            0+
"""
