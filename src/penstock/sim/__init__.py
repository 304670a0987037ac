"""A deterministic simulation that runs the real code. Only tests and `penstock sim` import it.

`world` is the entry point: a seed, a configuration and a scenario give an outcome and the hash of
its trace. Below it: `node` (brokers and clients as machines), `network`, `store`, `disk`,
`executor` and `clock` (the ports of one node), `loop` (virtual time, processes), `sandbox` (what
the code may not use), `trace`. Above it: the load (`actors`), what must hold (`checkers`), what
can be done to a cluster (`faults`), and `seeds`, which draws all of it.
"""
