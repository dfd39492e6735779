"""Many simulated processes contend for locks over a faulty wire, in virtual time, from one seed.

The code of ``core`` runs as it is: operations, renewer, pending releases, waiting. Each of its
activities is a greenlet, which stops wherever the code performs an effect; the scheduler decides
what happens next. ``python -m tests.simulation --seed 7`` runs one seed again, exactly.

The store is a real Valkey whose scripts read the virtual time from a key. fakeredis was measured
first: a script takes it milliseconds, because every command of the script goes through Python
(`benchmarks/results/simulation.md` has the figures of both). One connection executes the calls one
by one, so the real server is as deterministic as a simulated one. Keys with an expiry of their own
(marks of ended jobs, saved replies) expire in real time, which is later than any seed ends.
"""
