"""Faults of processes, networks and disks: the fault simulation and the stress tests."""
