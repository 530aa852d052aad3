"""What Belljar is measured beside: one module a peer, all with the interface of contract.py.

Each runs in a process of its own (drive.py), on the interpreter that has what it needs
(venvs.py), and is asked by the benchmark for one piece of work at a time.
"""
