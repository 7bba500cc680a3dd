"""Moves beside the scans: split-merge proposals, blocks of points and their hyperplanes, slice steps."""
