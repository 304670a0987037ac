"""The partition log on disk, in Kafka's file format.

Read in this order: `log.py` (the rules, and the parts of a log), `log_appender.py` (appends),
`segment.py` (one file), `flusher.py` (makes appends durable), `log_reader.py` (reads),
`recovery.py` (opens a log after a crash).
"""
