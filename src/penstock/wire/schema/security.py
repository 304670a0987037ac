"""Tables for authentication, access lists and SCRAM users, in the notation of `notation.py`."""

TABLE = """
SaslHandshakeRequest  key 17  versions 0-1  flexible never
  Mechanism  string  0+

SaslHandshakeResponse  key 17  versions 0-1  flexible never
  ErrorCode   int16     0+
  Mechanisms  [string]  0+

SaslAuthenticateRequest  key 36  versions 0-2  flexible 2+
  AuthBytes  bytes  0+

SaslAuthenticateResponse  key 36  versions 0-2  flexible 2+
  ErrorCode          int16    0+
  ErrorMessage       string?  0+
  AuthBytes          bytes    0+
  SessionLifetimeMs  int64    1+  ignorable

DescribeAclsRequest  key 29  versions 1-3  flexible 2+
  ResourceTypeFilter  int8     0+
  ResourceNameFilter  string?  0+
  PatternTypeFilter   int8     1+  = 3
  PrincipalFilter     string?  0+
  HostFilter          string?  0+
  Operation           int8     0+
  PermissionType      int8     0+

DescribeAclsResponse  key 29  versions 1-3  flexible 2+
  ThrottleTimeMs      int32       0+
  ErrorCode           int16       0+
  ErrorMessage        string?     0+
  Resources           [Resource]  0+
    ResourceType      int8        0+
    ResourceName      string      0+
    PatternType       int8        1+  = 3
    Acls              [Acl]       0+
      Principal       string      0+
      Host            string      0+
      Operation       int8        0+
      PermissionType  int8        0+

CreateAclsRequest  key 30  versions 1-3  flexible 2+
  Creations              [Creation]  0+
    ResourceType         int8        0+
    ResourceName         string      0+
    ResourcePatternType  int8        1+  = 3
    Principal            string      0+
    Host                 string      0+
    Operation            int8        0+
    PermissionType       int8        0+

CreateAclsResponse  key 30  versions 1-3  flexible 2+
  ThrottleTimeMs  int32     0+
  Results         [Result]  0+
    ErrorCode     int16     0+
    ErrorMessage  string?   0+

DeleteAclsRequest  key 31  versions 1-3  flexible 2+
  Filters               [Filter]  0+
    ResourceTypeFilter  int8      0+
    ResourceNameFilter  string?   0+
    PatternTypeFilter   int8      1+  = 3
    PrincipalFilter     string?   0+
    HostFilter          string?   0+
    Operation           int8      0+
    PermissionType      int8      0+

DeleteAclsResponse  key 31  versions 1-3  flexible 2+
  ThrottleTimeMs      int32           0+
  FilterResults       [FilterResult]  0+
    ErrorCode         int16           0+
    ErrorMessage      string?         0+
    MatchingAcls      [MatchingAcl]   0+
      ErrorCode       int16           0+
      ErrorMessage    string?         0+
      ResourceType    int8            0+
      ResourceName    string          0+
      PatternType     int8            1+  = 3
      Principal       string          0+
      Host            string          0+
      Operation       int8            0+
      PermissionType  int8            0+

DescribeUserScramCredentialsRequest  key 50  versions 0  flexible 0+
  Users   [User]?  0+
    Name  string   0+

DescribeUserScramCredentialsResponse  key 50  versions 0  flexible 0+
  ThrottleTimeMs     int32         0+
  ErrorCode          int16         0+
  ErrorMessage       string?       0+
  Results            [User]        0+
    User             string        0+
    ErrorCode        int16         0+
    ErrorMessage     string?       0+
    CredentialInfos  [Credential]  0+
      Mechanism      int8          0+
      Iterations     int32         0+

AlterUserScramCredentialsRequest  key 51  versions 0  flexible 0+
  Deletions         [Deletion]   0+
    Name            string       0+
    Mechanism       int8         0+
  Upsertions        [Upsertion]  0+
    Name            string       0+
    Mechanism       int8         0+
    Iterations      int32        0+
    Salt            bytes        0+
    SaltedPassword  bytes        0+

AlterUserScramCredentialsResponse  key 51  versions 0  flexible 0+
  ThrottleTimeMs  int32    0+
  Results         [User]   0+
    User          string   0+
    ErrorCode     int16    0+
    ErrorMessage  string?  0+
"""
