"""Tables for what the cluster is and what a broker speaks, in the notation of `notation.py`."""

TABLE = """
ApiVersionsRequest  key 18  versions 0-4  flexible 3+
  ClientSoftwareName     string  3+  ignorable
  ClientSoftwareVersion  string  3+  ignorable

ApiVersionsResponse  key 18  versions 0-4  flexible 3+
  ErrorCode               int16               0+
  ApiKeys                 [ApiVersion]        0+
    ApiKey                int16               0+
    MinVersion            int16               0+
    MaxVersion            int16               0+
  ThrottleTimeMs          int32               1+  ignorable
  SupportedFeatures       [SupportedFeature]  3+  tag 0  ignorable
    Name                  string              3+
    MinVersion            int16               3+
    MaxVersion            int16               3+
  FinalizedFeaturesEpoch  int64               3+  tag 1  = -1  ignorable
  FinalizedFeatures       [FinalizedFeature]  3+  tag 2  ignorable
    Name                  string              3+
    MaxVersionLevel       int16               3+
    MinVersionLevel       int16               3+
  ZkMigrationReady        bool                3+  tag 3  ignorable

MetadataRequest  key 3  versions 0-13  flexible 9+
  Topics                              [Topic]?1+  0+
    TopicId                           uuid        10+   ignorable
    Name                              string?10+  0+
  AllowAutoTopicCreation              bool        4+    = true
  IncludeClusterAuthorizedOperations  bool        8-10
  IncludeTopicAuthorizedOperations    bool        8+

MetadataResponse  key 3  versions 0-13  flexible 9+
  ThrottleTimeMs               int32        3+    ignorable
  Brokers                      [Broker]     0+
    NodeId                     int32        0+
    Host                       string       0+
    Port                       int32        0+
    Rack                       string?      1+    = null  ignorable
  ClusterId                    string?      2+    = null  ignorable
  ControllerId                 int32        1+    = -1  ignorable
  Topics                       [Topic]      0+
    ErrorCode                  int16        0+
    Name                       string?12+   0+
    TopicId                    uuid         10+   ignorable
    IsInternal                 bool         1+    ignorable
    Partitions                 [Partition]  0+
      ErrorCode                int16        0+
      PartitionIndex           int32        0+
      LeaderId                 int32        0+
      LeaderEpoch              int32        7+    = -1  ignorable
      ReplicaNodes             [int32]      0+
      IsrNodes                 [int32]      0+
      OfflineReplicas          [int32]      5+    ignorable
    TopicAuthorizedOperations  int32        8+    = -2147483648
  ClusterAuthorizedOperations  int32        8-10  = -2147483648
  ErrorCode                    int16        13+   ignorable

DescribeClusterRequest  key 60  versions 0-2  flexible 0+
  IncludeClusterAuthorizedOperations  bool  0+
  EndpointType                        int8  1+  = 1
  IncludeFencedBrokers                bool  2+

DescribeClusterResponse  key 60  versions 0-2  flexible 0+
  ThrottleTimeMs               int32     0+
  ErrorCode                    int16     0+
  ErrorMessage                 string?   0+  = null
  EndpointType                 int8      1+  = 1
  ClusterId                    string    0+
  ControllerId                 int32     0+  = -1
  Brokers                      [Broker]  0+
    BrokerId                   int32     0+
    Host                       string    0+
    Port                       int32     0+
    Rack                       string?   0+  = null
    IsFenced                   bool      2+
  ClusterAuthorizedOperations  int32     0+  = -2147483648

DescribeQuorumRequest  key 55  versions 0-2  flexible 0+
  Topics              [Topic]      0+
    TopicName         string       0+
    Partitions        [Partition]  0+
      PartitionIndex  int32        0+

DescribeQuorumResponse  key 55  versions 0-2  flexible 0+
  ErrorCode                    int16           0+
  ErrorMessage                 string?         2+  ignorable
  Topics                       [Topic]         0+
    TopicName                  string          0+
    Partitions                 [Partition]     0+
      PartitionIndex           int32           0+
      ErrorCode                int16           0+
      ErrorMessage             string?         2+  ignorable
      LeaderId                 int32           0+
      LeaderEpoch              int32           0+
      HighWatermark            int64           0+
      CurrentVoters            [ReplicaState]  0+
        ReplicaId              int32           0+
        ReplicaDirectoryId     uuid            2+
        LogEndOffset           int64           0+
        LastFetchTimestamp     int64           1+  = -1  ignorable
        LastCaughtUpTimestamp  int64           1+  = -1  ignorable
      Observers                [ReplicaState]  0+
  Nodes                        [Node]          2+
    NodeId                     int32           2+
    Listeners                  [Listener]      2+
      Name                     string          2+
      Host                     string          2+
      Port                     uint16          2+

UnregisterBrokerRequest  key 64  versions 0  flexible 0+
  BrokerId  int32  0+

UnregisterBrokerResponse  key 64  versions 0  flexible 0+
  ThrottleTimeMs  int32    0+
  ErrorCode       int16    0+
  ErrorMessage    string?  0+

DescribeTopicPartitionsRequest  key 75  versions 0  flexible 0+
  Topics                  [Topic]  0+
    Name                  string   0+
  ResponsePartitionLimit  int32    0+  = 2000
  Cursor                  Cursor?  0+  = null
    TopicName             string   0+
    PartitionIndex        int32    0+

DescribeTopicPartitionsResponse  key 75  versions 0  flexible 0+
  ThrottleTimeMs               int32        0+  ignorable
  Topics                       [Topic]      0+
    ErrorCode                  int16        0+
    Name                       string?      0+
    TopicId                    uuid         0+  ignorable
    IsInternal                 bool         0+  ignorable
    Partitions                 [Partition]  0+
      ErrorCode                int16        0+
      PartitionIndex           int32        0+
      LeaderId                 int32        0+
      LeaderEpoch              int32        0+  = -1  ignorable
      ReplicaNodes             [int32]      0+
      IsrNodes                 [int32]      0+
      EligibleLeaderReplicas   [int32]?     0+  = null
      LastKnownElr             [int32]?     0+  = null
      OfflineReplicas          [int32]      0+  ignorable
    TopicAuthorizedOperations  int32        0+  = -2147483648
  NextCursor                   Cursor?      0+  = null
    TopicName                  string       0+
    PartitionIndex             int32        0+

UpdateFeaturesRequest  key 57  versions 0-2  flexible 0+
  timeoutMs          int32            0+  = 60000
  FeatureUpdates     [FeatureUpdate]  0+
    Feature          string           0+
    MaxVersionLevel  int16            0+
    AllowDowngrade   bool             0
    UpgradeType      int8             1+  = 1
  ValidateOnly       bool             1+

UpdateFeaturesResponse  key 57  versions 0-2  flexible 0+
  ThrottleTimeMs  int32      0+
  ErrorCode       int16      0+
  ErrorMessage    string?    0+
  Results         [Result]   0-1  ignorable
    Feature       string     0+
    ErrorCode     int16      0+
    ErrorMessage  string?    0+
"""
