"""Being a member of a consumer group: who reads what, and how far everyone has come."""
