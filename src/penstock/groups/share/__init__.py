"""What the coordinator knows of a share group (KIP-932): its records, and the group in memory.

Members are assigned partitions by the broker (`shares.assignor`). A partition may be assigned to
several members at a time, so nothing must be given up before it is assigned: a member takes over
its whole target assignment with one heartbeat.
"""
