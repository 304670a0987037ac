"""Tables for share groups (KIP-932), in the notation of `notation.py`."""

TABLE = """
ShareGroupHeartbeatRequest  key 76  versions 1-1  flexible 0+
  GroupId               string     0+
  MemberId              string     0+
  MemberEpoch           int32      0+
  RackId                string?    0+  = null
  SubscribedTopicNames  [string]?  0+  = null

ShareGroupHeartbeatResponse  key 76  versions 1-1  flexible 0+
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

ShareGroupDescribeRequest  key 77  versions 1-1  flexible 0+
  GroupIds                     [string]  0+
  IncludeAuthorizedOperations  bool      0+

ShareGroupDescribeResponse  key 77  versions 1-1  flexible 0+
  ThrottleTimeMs            int32              0+
  Groups                    [DescribedGroup]   0+
    ErrorCode               int16              0+
    ErrorMessage            string?            0+  = null
    GroupId                 string             0+
    GroupState              string             0+
    GroupEpoch              int32              0+
    AssignmentEpoch         int32              0+
    AssignorName            string             0+
    Members                 [Member]           0+
      MemberId              string             0+
      RackId                string?            0+  = null
      MemberEpoch           int32              0+
      ClientId              string             0+
      ClientHost            string             0+
      SubscribedTopicNames  [string]           0+
      Assignment            Assignment         0+
        TopicPartitions     [TopicPartitions]  0+
          TopicId           uuid               0+
          TopicName         string             0+
          Partitions        [int32]            0+
    AuthorizedOperations    int32              0+  = -2147483648

ShareFetchRequest  key 78  versions 1-2  flexible 0+
  GroupId                    string?                 0+  = null
  MemberId                   string?                 0+
  ShareSessionEpoch          int32                   0+
  MaxWaitMs                  int32                   0+
  MinBytes                   int32                   0+
  MaxBytes                   int32                   0+  = 2147483647
  MaxRecords                 int32                   1+
  BatchSize                  int32                   1+
  ShareAcquireMode           int8                    2+  ignorable
  IsRenewAck                 bool                    2+
  Topics                     [Topic]                 0+
    TopicId                  uuid                    0+
    Partitions               [Partition]             0+
      PartitionIndex         int32                   0+
      PartitionMaxBytes      int32                   0
      AcknowledgementBatches  [AcknowledgementBatch]  0+
        FirstOffset          int64                   0+
        LastOffset           int64                   0+
        AcknowledgeTypes     [int8]                  0+
  ForgottenTopicsData        [ForgottenTopic]        0+
    TopicId                  uuid                    0+
    Partitions               [int32]                 0+

ShareFetchResponse  key 78  versions 1-2  flexible 0+
  ThrottleTimeMs             int32              0+
  ErrorCode                  int16              0+
  ErrorMessage               string?            0+  = null
  AcquisitionLockTimeoutMs   int32              1+
  Responses                  [TopicResponse]    0+
    TopicId                  uuid               0+
    Partitions               [PartitionData]    0+
      PartitionIndex         int32              0+
      ErrorCode              int16              0+
      ErrorMessage           string?            0+  = null
      AcknowledgeErrorCode   int16              0+
      AcknowledgeErrorMessage  string?          0+  = null
      CurrentLeader          LeaderIdAndEpoch   0+
        LeaderId             int32              0+
        LeaderEpoch          int32              0+
      Records                records?0          0+
      AcquiredRecords        [AcquiredRecords]  0+
        FirstOffset          int64              0+
        LastOffset           int64              0+
        DeliveryCount        int16              0+
  NodeEndpoints              [NodeEndpoint]     0+
    NodeId                   int32              0+
    Host                     string             0+
    Port                     int32              0+
    Rack                     string?            0+  = null

ShareAcknowledgeRequest  key 79  versions 1-2  flexible 0+
  GroupId                    string?                 0+  = null
  MemberId                   string?                 0+
  ShareSessionEpoch          int32                   0+
  IsRenewAck                 bool                    2+
  Topics                     [Topic]                 0+
    TopicId                  uuid                    0+
    Partitions               [Partition]             0+
      PartitionIndex         int32                   0+
      AcknowledgementBatches  [AcknowledgementBatch]  0+
        FirstOffset          int64                   0+
        LastOffset           int64                   0+
        AcknowledgeTypes     [int8]                  0+

ShareAcknowledgeResponse  key 79  versions 1-2  flexible 0+
  ThrottleTimeMs            int32             0+
  ErrorCode                 int16             0+
  ErrorMessage              string?           0+  = null
  AcquisitionLockTimeoutMs  int32             2+  ignorable
  Responses                 [TopicResponse]   0+
    TopicId                 uuid              0+
    Partitions              [PartitionData]   0+
      PartitionIndex        int32             0+
      ErrorCode             int16             0+
      ErrorMessage          string?           0+  = null
      CurrentLeader         LeaderIdAndEpoch  0+
        LeaderId            int32             0+
        LeaderEpoch         int32             0+
  NodeEndpoints             [NodeEndpoint]    0+
    NodeId                  int32             0+
    Host                    string            0+
    Port                    int32             0+
    Rack                    string?           0+  = null

DescribeShareGroupOffsetsRequest  key 90  versions 0-1  flexible 0+
  Groups          [Group]   0+
    GroupId       string    0+
    Topics        [Topic]?  0+
      TopicName   string    0+
      Partitions  [int32]   0+

DescribeShareGroupOffsetsResponse  key 90  versions 0-1  flexible 0+
  ThrottleTimeMs      int32        0+
  Groups              [Group]      0+
    GroupId           string       0+
    Topics            [Topic]      0+
      TopicName       string       0+
      TopicId         uuid         0+
      Partitions      [Partition]  0+
        PartitionIndex  int32      0+
        StartOffset   int64        0+
        LeaderEpoch   int32        0+
        Lag           int64        1+  = -1  ignorable
        ErrorCode     int16        0+
        ErrorMessage  string?      0+  = null
    ErrorCode         int16        0+
    ErrorMessage      string?      0+  = null

AlterShareGroupOffsetsRequest  key 91  versions 0-0  flexible 0+
  GroupId             string       0+
  Topics              [Topic]      0+
    TopicName         string       0+
    Partitions        [Partition]  0+
      PartitionIndex  int32        0+
      StartOffset     int64        0+

AlterShareGroupOffsetsResponse  key 91  versions 0-0  flexible 0+
  ThrottleTimeMs      int32            0+
  ErrorCode           int16            0+
  ErrorMessage        string?          0+  = null
  Responses           [TopicResponse]  0+
    TopicName         string           0+
    TopicId           uuid             0+
    Partitions        [Partition]      0+
      PartitionIndex  int32            0+
      ErrorCode       int16            0+
      ErrorMessage    string?          0+  = null

DeleteShareGroupOffsetsRequest  key 92  versions 0-0  flexible 0+
  GroupId      string   0+
  Topics       [Topic]  0+
    TopicName  string   0+

DeleteShareGroupOffsetsResponse  key 92  versions 0-0  flexible 0+
  ThrottleTimeMs  int32            0+
  ErrorCode       int16            0+
  ErrorMessage    string?          0+  = null
  Responses       [TopicResponse]  0+
    TopicName     string           0+
    TopicId       uuid             0+
    ErrorCode     int16            0+
    ErrorMessage  string?          0+  = null
"""
