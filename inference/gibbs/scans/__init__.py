"""Scans of the assignments for several structures, and their compiled loops."""
