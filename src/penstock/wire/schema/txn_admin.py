"""Tables for ending transactions and looking at them, in the notation of `notation.py`."""

TABLE = """
WriteTxnMarkersRequest  key 27  versions 1-2  flexible 1+
  Markers               [Marker]  0+
    ProducerId          int64     0+
    ProducerEpoch       int16     0+
    TransactionResult   bool      0+
    Topics              [Topic]   0+
      Name              string    0+
      PartitionIndexes  [int32]   0+
    CoordinatorEpoch    int32     0+
    TransactionVersion  int8      2+  ignorable

WriteTxnMarkersResponse  key 27  versions 1-2  flexible 1+
  Markers               [Marker]     0+
    ProducerId          int64        0+
    Topics              [Topic]      0+
      Name              string       0+
      Partitions        [Partition]  0+
        PartitionIndex  int32        0+
        ErrorCode       int16        0+

DescribeProducersRequest  key 61  versions 0  flexible 0+
  Topics              [Topic]  0+
    Name              string   0+
    PartitionIndexes  [int32]  0+

DescribeProducersResponse  key 61  versions 0  flexible 0+
  ThrottleTimeMs               int32        0+
  Topics                       [Topic]      0+
    Name                       string       0+
    Partitions                 [Partition]  0+
      PartitionIndex           int32        0+
      ErrorCode                int16        0+
      ErrorMessage             string?      0+  = null
      ActiveProducers          [Producer]   0+
        ProducerId             int64        0+
        ProducerEpoch          int32        0+
        LastSequence           int32        0+  = -1
        LastTimestamp          int64        0+  = -1
        CoordinatorEpoch       int32        0+
        CurrentTxnStartOffset  int64        0+  = -1

DescribeTransactionsRequest  key 65  versions 0  flexible 0+
  TransactionalIds  [string]  0+

DescribeTransactionsResponse  key 65  versions 0  flexible 0+
  ThrottleTimeMs            int32          0+
  TransactionStates         [Transaction]  0+
    ErrorCode               int16          0+
    TransactionalId         string         0+
    TransactionState        string         0+
    TransactionTimeoutMs    int32          0+
    TransactionStartTimeMs  int64          0+
    ProducerId              int64          0+
    ProducerEpoch           int16          0+
    Topics                  [Topic]        0+
      Topic                 string         0+
      Partitions            [int32]        0+

ListTransactionsRequest  key 66  versions 0-2  flexible 0+
  StateFilters            [string]  0+
  ProducerIdFilters       [int64]   0+
  DurationFilter          int64     1+  = -1
  TransactionalIdPattern  string?   2+  = null

ListTransactionsResponse  key 66  versions 0-2  flexible 0+
  ThrottleTimeMs       int32          0+
  ErrorCode            int16          0+
  UnknownStateFilters  [string]       0+
  TransactionStates    [Transaction]  0+
    TransactionalId    string         0+
    ProducerId         int64          0+
    TransactionState   string         0+
"""
