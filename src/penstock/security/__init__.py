"""Who may do what: credentials, access rules, quotas and listeners, without I/O.

`acls` describes access rules, `authorizer` decides by them, `acl_filters` finds and changes them,
and `roles` are sets of them. `sasl_session` is the machine of one connection that authenticates;
`plain`, `scram` and `oauthbearer` are its mechanisms (`exchange` is what they have in common), with
`scram_credentials`, `tokens` and `token_keys` behind them. `user_names` says which names are valid,
and `decoys` answers for users who do not exist. `listeners` and `listener_security` read
Kafka's settings. `principal_rules` turns the subject of a client's certificate into a user name, in
a time that the client cannot stretch (`linear_matcher`). `certificates` makes and describes
certificates. `quotas` finds the limit of a client, `rates` measures it with the `gauges`, and
`fair_share` divides a resource between clients. `audit` records who did what, and `audit_throttle`
keeps floods out of the record. `addresses` gives addresses one spelling.

Nothing here reads a clock or a file: callers pass the time, random bytes and the contents of files.
The broker does not call these modules yet.
"""
