"""Seeing a broker at work: figures for Prometheus, health for whoever restarts it, logs for people.

`figures.py` is all that the rest of the broker knows of this: plain numbers that hot paths add to.
Everything else is read from the broker when somebody asks (`gather.py`, `families.py`,
`health.py`), or told by the cluster's image when it changes (`story.py`). `watching.py` wires it up
for a real process; a broker in a simulator has its figures and nothing of the rest.
"""
