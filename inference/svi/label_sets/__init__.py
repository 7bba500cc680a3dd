"""Variational inference of multi-label models."""
