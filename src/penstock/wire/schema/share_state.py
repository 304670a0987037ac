"""Tables for what brokers ask of the share coordinator, in the notation of `notation.py`.

The API is Penstock's own. Kafka's five requests for the same (keys 83 to 87) lack the end of the
window, due times and reasons, and each of them is about one group.
"""

TABLE = """
ShareStateRequest  key 10005  versions 0  flexible 0+
  Operations           [Operation]  0+
    Kind               int8         0+
    GroupId            string       0+
    TopicId            uuid         0+
    Partition          int32        0+
    LeaderEpoch        int32        0+  = -1
    ReadOffset         int64        0+  = -1
    State              State?       0+  = null
      StateEpoch       int32        0+
      StartOffset      int64        0+
      EndOffset        int64        0+
      EndLeaderEpoch   int32        0+
      Spans            [Span]       0+
        First          int64        0+
        Last           int64        0+
        State          int8         0+
        DeliveryCount  int16        0+
        DueMs          int64        0+  tag 0  ignorable
        Reason         int8         0+  tag 1  ignorable
        LetterShift    int64        0+  tag 2  ignorable
      LetterBase       int64        0+  tag 0  ignorable
      LetterNext       int64        0+  tag 1  ignorable
      ProducerEpoch    int16        0+  tag 2  ignorable
      ProducerId       int64        0+  = -1  tag 3  ignorable
      Promoted         [Span]       0+  tag 4  ignorable
      ScheduleNumber   int32        0+  tag 5  ignorable
      ScheduleCeiling  int64        0+  = -1  tag 6  ignorable
      ScheduleFloor    int64        0+  tag 7  ignorable
      ScheduleEnd      int64        0+  tag 8  ignorable
      ScheduleDueMs    int64        0+  tag 9  ignorable
      ScheduleDueOffset  int64      0+  = -1  tag 10  ignorable
      Attachment       bytes        0+  tag 20  ignorable

ShareStateResponse  key 10005  versions 0  flexible 0+
  ThrottleTimeMs       int32     0+
  ErrorCode            int16     0+
  Results              [Result]  0+
    ErrorCode          int16     0+
    ReadOffset         int64     0+  = -1
    State              State?    0+  = null
      StateEpoch       int32     0+
      StartOffset      int64     0+
      EndOffset        int64     0+
      EndLeaderEpoch   int32     0+
      Spans            [Span]    0+
        First          int64     0+
        Last           int64     0+
        State          int8      0+
        DeliveryCount  int16     0+
        DueMs          int64     0+  tag 0  ignorable
        Reason         int8      0+  tag 1  ignorable
        LetterShift    int64     0+  tag 2  ignorable
      LetterBase       int64     0+  tag 0  ignorable
      LetterNext       int64     0+  tag 1  ignorable
      ProducerEpoch    int16     0+  tag 2  ignorable
      ProducerId       int64     0+  = -1  tag 3  ignorable
      Promoted         [Span]    0+  tag 4  ignorable
      ScheduleNumber   int32     0+  tag 5  ignorable
      ScheduleCeiling  int64     0+  = -1  tag 6  ignorable
      ScheduleFloor    int64     0+  tag 7  ignorable
      ScheduleEnd      int64     0+  tag 8  ignorable
      ScheduleDueMs    int64     0+  tag 9  ignorable
      ScheduleDueOffset  int64   0+  = -1  tag 10  ignorable
      Attachment       bytes     0+  tag 20  ignorable
    Summary            Summary?  0+  = null
      StateEpoch       int32     0+
      LeaderEpoch      int32     0+
      StartOffset      int64     0+
      Done             int64     0+
      Promoted         int64     0+  tag 0  ignorable
"""
