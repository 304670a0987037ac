"""A deterministic world to run the real code in. Only tests and `penstock sim` import this."""
