"""Delay topics on their leaders: copies records to the target when they are due.

`penstock.delays` decides what to copy next. `delayed_partition` carries that out for one partition,
and `delay_leader` runs one for each partition of a delay topic that this broker leads.
"""
