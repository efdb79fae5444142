"""Shared maths: agent and coordinator must compute identical results."""
