"""A deterministic simulation that runs the real code. Only tests and `penstock sim` import it.

`world` is the entry point: a seed, a configuration and a scenario give an outcome and the hash of
its trace. Below it: `loop` (virtual time, processes), `network` and `network_stream`, `store`,
`disk`, `executor` and `clock` (the ports of one node), `node` (brokers and clients as machines),
`faults` (what can be done to them), `tripwire` (what the code may not use), `trace`.
"""
