"""The exactly-once sink: tasks write in transactions, and the driver commits them together."""
