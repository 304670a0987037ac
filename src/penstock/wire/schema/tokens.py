"""Tables for delegation tokens (KIP-48), in the notation of `notation.py`."""

TABLE = """
CreateDelegationTokenRequest  key 38  versions 1-3  flexible 2+
  OwnerPrincipalType  string?    3+
  OwnerPrincipalName  string?    3+
  Renewers            [Renewer]  0+
    PrincipalType     string     0+
    PrincipalName     string     0+
  MaxLifetimeMs       int64      0+

CreateDelegationTokenResponse  key 38  versions 1-3  flexible 2+
  ErrorCode                    int16   0+
  PrincipalType                string  0+
  PrincipalName                string  0+
  TokenRequesterPrincipalType  string  3+
  TokenRequesterPrincipalName  string  3+
  IssueTimestampMs             int64   0+
  ExpiryTimestampMs            int64   0+
  MaxTimestampMs               int64   0+
  TokenId                      string  0+
  Hmac                         bytes   0+
  ThrottleTimeMs               int32   0+

RenewDelegationTokenRequest  key 39  versions 1-2  flexible 2+
  Hmac           bytes  0+
  RenewPeriodMs  int64  0+

RenewDelegationTokenResponse  key 39  versions 1-2  flexible 2+
  ErrorCode          int16  0+
  ExpiryTimestampMs  int64  0+
  ThrottleTimeMs     int32  0+

ExpireDelegationTokenRequest  key 40  versions 1-2  flexible 2+
  Hmac                bytes  0+
  ExpiryTimePeriodMs  int64  0+

ExpireDelegationTokenResponse  key 40  versions 1-2  flexible 2+
  ErrorCode          int16  0+
  ExpiryTimestampMs  int64  0+
  ThrottleTimeMs     int32  0+

DescribeDelegationTokenRequest  key 41  versions 1-3  flexible 2+
  Owners           [Owner]?  0+
    PrincipalType  string    0+
    PrincipalName  string    0+

DescribeDelegationTokenResponse  key 41  versions 1-3  flexible 2+
  ErrorCode                      int16      0+
  Tokens                         [Token]    0+
    PrincipalType                string     0+
    PrincipalName                string     0+
    TokenRequesterPrincipalType  string     3+
    TokenRequesterPrincipalName  string     3+
    IssueTimestamp               int64      0+
    ExpiryTimestamp              int64      0+
    MaxTimestamp                 int64      0+
    TokenId                      string     0+
    Hmac                         bytes      0+
    Renewers                     [Renewer]  0+
      PrincipalType              string     0+
      PrincipalName              string     0+
  ThrottleTimeMs                 int32      0+
"""
