"""The sync face of the clients: the same names, on a thread of their own."""
