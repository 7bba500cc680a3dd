"""The seams for many machines."""
