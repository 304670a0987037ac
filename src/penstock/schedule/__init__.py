"""Schedules without I/O: which records of a partition are due, each of them exactly once.

A reader of a partition, such as a share group, has a `cursor`: it says which records with due times
it has *promoted*, that is, passed on because they were due. An `index` has the due times of the
records of the log. `advance` moves a cursor forward. The cursor is all that must be durable: the
index is derived from the log.
"""
