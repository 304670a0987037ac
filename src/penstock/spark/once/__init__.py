"""The exactly-once sink: tasks write in transactions that their driver ends together."""
