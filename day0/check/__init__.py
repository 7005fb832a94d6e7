"""Holds a run's figures to a stored baseline."""
