"""Tables for looking at groups and deleting them, in the notation of `notation.py`."""

TABLE = """
DescribeGroupsRequest  key 15  versions 0-6  flexible 5+
  Groups                       [string]  0+
  IncludeAuthorizedOperations  bool      3+

DescribeGroupsResponse  key 15  versions 0-6  flexible 5+
  ThrottleTimeMs          int32     1+  ignorable
  Groups                  [Group]   0+
    ErrorCode             int16     0+
    ErrorMessage          string?   6+  = null
    GroupId               string    0+
    GroupState            string    0+
    ProtocolType          string    0+
    ProtocolData          string    0+
    Members               [Member]  0+
      MemberId            string    0+
      GroupInstanceId     string?   4+  = null  ignorable
      ClientId            string    0+
      ClientHost          string    0+
      MemberMetadata      bytes     0+
      MemberAssignment    bytes     0+
    AuthorizedOperations  int32     3+  = -2147483648

ListGroupsRequest  key 16  versions 0-5  flexible 3+
  StatesFilter  [string]  4+
  TypesFilter   [string]  5+

ListGroupsResponse  key 16  versions 0-5  flexible 3+
  ThrottleTimeMs  int32    1+  ignorable
  ErrorCode       int16    0+
  Groups          [Group]  0+
    GroupId       string   0+
    ProtocolType  string   0+
    GroupState    string   4+  ignorable
    GroupType     string   5+  ignorable

DeleteGroupsRequest  key 42  versions 0-2  flexible 2+
  GroupsNames  [string]  0+

DeleteGroupsResponse  key 42  versions 0-2  flexible 2+
  ThrottleTimeMs  int32    0+
  Results         [Group]  0+
    GroupId       string   0+
    ErrorCode     int16    0+

ConsumerGroupDescribeRequest  key 69  versions 0-1  flexible 0+
  GroupIds                     [string]  0+
  IncludeAuthorizedOperations  bool      0+

ConsumerGroupDescribeResponse  key 69  versions 0-1  flexible 0+
  ThrottleTimeMs            int32              0+
  Groups                    [Group]            0+
    ErrorCode               int16              0+
    ErrorMessage            string?            0+  = null
    GroupId                 string             0+
    GroupState              string             0+
    GroupEpoch              int32              0+
    AssignmentEpoch         int32              0+
    AssignorName            string             0+
    Members                 [Member]           0+
      MemberId              string             0+
      InstanceId            string?            0+  = null
      RackId                string?            0+  = null
      MemberEpoch           int32              0+
      ClientId              string             0+
      ClientHost            string             0+
      SubscribedTopicNames  [string]           0+
      SubscribedTopicRegex  string?            0+  = null
      Assignment            Assignment         0+
        TopicPartitions     [TopicPartitions]  0+
          TopicId           uuid               0+
          TopicName         string             0+
          Partitions        [int32]            0+
      TargetAssignment      Assignment         0+
      MemberType            int8               1+  = -1  ignorable
    AuthorizedOperations    int32              0+  = -2147483648
"""
