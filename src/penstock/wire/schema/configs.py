"""Tables for configs and quotas, in the notation of `notation.py`."""

TABLE = """
DescribeConfigsRequest  key 32  versions 1-4  flexible 4+
  Resources             [Resource]  0+
    ResourceType        int8        0+
    ResourceName        string      0+
    ConfigurationKeys   [string]?   0+
  IncludeSynonyms       bool        1+
  IncludeDocumentation  bool        3+

DescribeConfigsResponse  key 32  versions 1-4  flexible 4+
  ThrottleTimeMs     int32       0+
  Results            [Resource]  0+
    ErrorCode        int16       0+
    ErrorMessage     string?     0+
    ResourceType     int8        0+
    ResourceName     string      0+
    Configs          [Config]    0+
      Name           string      0+
      Value          string?     0+
      ReadOnly       bool        0+
      ConfigSource   int8        1+  = -1  ignorable
      IsSensitive    bool        0+
      Synonyms       [Synonym]   1+  ignorable
        Name         string      1+
        Value        string?     1+
        Source       int8        1+
      ConfigType     int8        3+  ignorable
      Documentation  string?     3+  ignorable

AlterConfigsRequest  key 33  versions 0-2  flexible 2+
  Resources       [Resource]  0+
    ResourceType  int8        0+
    ResourceName  string      0+
    Configs       [Config]    0+
      Name        string      0+
      Value       string?     0+
  ValidateOnly    bool        0+

AlterConfigsResponse  key 33  versions 0-2  flexible 2+
  ThrottleTimeMs  int32       0+
  Responses       [Resource]  0+
    ErrorCode     int16       0+
    ErrorMessage  string?     0+
    ResourceType  int8        0+
    ResourceName  string      0+

IncrementalAlterConfigsRequest  key 44  versions 0-1  flexible 1+
  Resources            [Resource]  0+
    ResourceType       int8        0+
    ResourceName       string      0+
    Configs            [Config]    0+
      Name             string      0+
      ConfigOperation  int8        0+
      Value            string?     0+
  ValidateOnly         bool        0+

IncrementalAlterConfigsResponse  key 44  versions 0-1  flexible 1+
  ThrottleTimeMs  int32       0+
  Responses       [Resource]  0+
    ErrorCode     int16       0+
    ErrorMessage  string?     0+
    ResourceType  int8        0+
    ResourceName  string      0+

DescribeClientQuotasRequest  key 48  versions 0-1  flexible 1+
  Components    [Component]  0+
    EntityType  string       0+
    MatchType   int8         0+
    Match       string?      0+
  Strict        bool         0+

DescribeClientQuotasResponse  key 48  versions 0-1  flexible 1+
  ThrottleTimeMs  int32     0+
  ErrorCode       int16     0+
  ErrorMessage    string?   0+
  Entries         [Entry]?  0+
    Entity        [Entity]  0+
      EntityType  string    0+
      EntityName  string?   0+
    Values        [Value]   0+
      Key         string    0+
      Value       float64   0+

AlterClientQuotasRequest  key 49  versions 0-1  flexible 1+
  Entries         [Entry]   0+
    Entity        [Entity]  0+
      EntityType  string    0+
      EntityName  string?   0+
    Ops           [Op]      0+
      Key         string    0+
      Value       float64   0+
      Remove      bool      0+
  ValidateOnly    bool      0+

AlterClientQuotasResponse  key 49  versions 0-1  flexible 1+
  ThrottleTimeMs  int32     0+
  Entries         [Entry]   0+
    ErrorCode     int16     0+
    ErrorMessage  string?   0+
    Entity        [Entity]  0+
      EntityType  string    0+
      EntityName  string?   0+

ListConfigResourcesRequest  key 74  versions 0-1  flexible 0+
  ResourceTypes  [int8]  1+

ListConfigResourcesResponse  key 74  versions 0-1  flexible 0+
  ThrottleTimeMs   int32             0+
  ErrorCode        int16             0+
  ConfigResources  [ConfigResource]  0+
    ResourceName   string            0+
    ResourceType   int8              1+  = 16  ignorable
"""
