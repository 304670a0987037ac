"""One broker: the wire protocol served from the log."""
