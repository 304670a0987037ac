"""Tables for roles, in the notation of `notation.py`. These APIs are Penstock's own."""

TABLE = """
DescribeRolesRequest  key 10002  versions 0  flexible 0+
  Principal  string?  0+  = null

DescribeRolesResponse  key 10002  versions 0  flexible 0+
  ThrottleTimeMs    int32         0+
  ErrorCode         int16         0+
  ErrorMessage      string?       0+  = null
  Roles             [Role]        0+
    Name            string        0+
    BuiltIn         bool          0+
    Grants          [Grant]       0+
      ResourceType  int8          0+
      Operations    [int8]        0+
      ResourceName  string?       0+  = null
      PatternType   int8          0+  = 3
  Assignments       [Assignment]  0+
    Role            string        0+
    Principal       string        0+
    Host            string        0+
    ResourceType    int8          0+
    PatternType     int8          0+
    ResourceName    string        0+

AlterRolesRequest  key 10003  versions 0  flexible 0+
  Changes           [Change]  0+
    Action          int8      0+
    Role            string    0+
    Grants          [Grant]   0+
      ResourceType  int8      0+
      Operations    [int8]    0+
      ResourceName  string?   0+  = null
      PatternType   int8      0+  = 3
    Principal       string    0+
    Host            string    0+
    ResourceType    int8      0+
    PatternType     int8      0+
    ResourceName    string    0+

AlterRolesResponse  key 10003  versions 0  flexible 0+
  ThrottleTimeMs  int32    0+
  ErrorCode       int16    0+
  ErrorMessage    string?  0+  = null

CheckAccessRequest  key 10004  versions 0  flexible 0+
  Principal     string  0+
  Host          string  0+
  Operation     int8    0+
  ResourceType  int8    0+
  ResourceName  string  0+

CheckAccessResponse  key 10004  versions 0  flexible 0+
  ThrottleTimeMs  int32     0+
  ErrorCode       int16     0+
  ErrorMessage    string?   0+  = null
  Allowed         bool      0+
  Reason          string    0+
  Roles           [string]  0+
"""
