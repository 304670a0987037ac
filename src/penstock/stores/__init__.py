"""Metadata stores: linearizable key-value engines behind one port."""
