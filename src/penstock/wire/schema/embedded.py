"""Tables for what clients put inside opaque bytes, in the notation of `notation.py`."""

TABLE = """
ConsumerProtocolSubscription  versions 0-3  flexible never
  Topics           [string]          0+
  UserData         bytes?            0+  = null
  OwnedPartitions  [TopicPartition]  1+  ignorable
    Topic          string            1+
    Partitions     [int32]           1+
  GenerationId     int32             2+  = -1  ignorable
  RackId           string?           3+  = null  ignorable

ConsumerProtocolAssignment  versions 0-3  flexible never
  AssignedPartitions  [TopicPartition]  0+
    Topic             string            0+
    Partitions        [int32]           0+
  UserData            bytes?            0+  = null
"""
