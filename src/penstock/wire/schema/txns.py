"""Tables for producer ids and transactions, in the notation of `notation.py`."""

TABLE = """
InitProducerIdRequest  key 22  versions 0-6  flexible 2+
  TransactionalId       string?  0+
  TransactionTimeoutMs  int32    0+
  ProducerId            int64    3+  = -1
  ProducerEpoch         int16    3+  = -1
  Enable2Pc             bool     6+
  KeepPreparedTxn       bool     6+

InitProducerIdResponse  key 22  versions 0-6  flexible 2+
  ThrottleTimeMs           int32  0+  ignorable
  ErrorCode                int16  0+
  ProducerId               int64  0+  = -1
  ProducerEpoch            int16  0+
  OngoingTxnProducerId     int64  6+  = -1
  OngoingTxnProducerEpoch  int16  6+  = -1

AddPartitionsToTxnRequest  key 24  versions 0-5  flexible 3+
  Transactions               [Transaction]  4+
    TransactionalId          string         4+
    ProducerId               int64          4+
    ProducerEpoch            int16          4+
    VerifyOnly               bool           4+
    Topics                   [Topic]        4+
      Name                   string         0+
      Partitions             [int32]        0+
  V3AndBelowTransactionalId  string         0-3
  V3AndBelowProducerId       int64          0-3
  V3AndBelowProducerEpoch    int16          0-3
  V3AndBelowTopics           [Topic]        0-3

AddPartitionsToTxnResponse  key 24  versions 0-5  flexible 3+
  ThrottleTimeMs            int32          0+
  ErrorCode                 int16          4+   ignorable
  ResultsByTransaction      [Transaction]  4+
    TransactionalId         string         4+
    TopicResults            [Topic]        4+
      Name                  string         0+
      ResultsByPartition    [Partition]    0+
        PartitionIndex      int32          0+
        PartitionErrorCode  int16          0+
  ResultsByTopicV3AndBelow  [Topic]        0-3

AddOffsetsToTxnRequest  key 25  versions 0-4  flexible 3+
  TransactionalId  string  0+
  ProducerId       int64   0+
  ProducerEpoch    int16   0+
  GroupId          string  0+

AddOffsetsToTxnResponse  key 25  versions 0-4  flexible 3+
  ThrottleTimeMs  int32  0+
  ErrorCode       int16  0+

EndTxnRequest  key 26  versions 0-5  flexible 3+
  TransactionalId  string  0+
  ProducerId       int64   0+
  ProducerEpoch    int16   0+
  Committed        bool    0+

EndTxnResponse  key 26  versions 0-5  flexible 3+
  ThrottleTimeMs  int32  0+
  ErrorCode       int16  0+
  ProducerId      int64  5+  = -1  ignorable
  ProducerEpoch   int16  5+  = -1  ignorable

EndTransactionsRequest  key 10001  versions 0  flexible 0+
  Committed          bool      0+
  OffsetsTopic       string?   0+  = null
  OffsetsPartition   int32     0+  = -1
  Members            [Member]  0+
    TransactionalId  string    0+
    ProducerId       int64     0+
    ProducerEpoch    int16     0+

EndTransactionsResponse  key 10001  versions 0  flexible 0+
  ThrottleTimeMs     int32     0+
  ErrorCode          int16     0+
  Members            [Member]  0+
    TransactionalId  string    0+
    ErrorCode        int16     0+
    ProducerId       int64     0+  = -1
    ProducerEpoch    int16     0+  = -1

TxnOffsetCommitRequest  key 28  versions 0-5  flexible 3+
  TransactionalId           string       0+
  GroupId                   string       0+
  ProducerId                int64        0+
  ProducerEpoch             int16        0+
  GenerationId              int32        3+  = -1
  MemberId                  string       3+
  GroupInstanceId           string?      3+  = null
  Topics                    [Topic]      0+
    Name                    string       0+
    Partitions              [Partition]  0+
      PartitionIndex        int32        0+
      CommittedOffset       int64        0+
      CommittedLeaderEpoch  int32        2+  = -1  ignorable
      CommittedMetadata     string?      0+

TxnOffsetCommitResponse  key 28  versions 0-5  flexible 3+
  ThrottleTimeMs      int32        0+
  Topics              [Topic]      0+
    Name              string       0+
    Partitions        [Partition]  0+
      PartitionIndex  int32        0+
      ErrorCode       int16        0+
"""
