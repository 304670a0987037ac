"""The logic of one partition: replication, producers, leader epochs, retention, compaction. Pure.

Read in this order: `decisions.py` (what the machine answers), `machine.py` (every event of a
partition), `leadership.py` and `follower.py` (its two roles), `sequence_gate.py` and `producers.py`
(which batches are duplicates or out of order), `record_validation.py` (which records are refused).
"""
