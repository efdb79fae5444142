"""The whole system in one thread, on a clock and dice of its own: `python -m tests.faults.fault_simulation
--help`.
"""
