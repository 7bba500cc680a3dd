"""Variational inference of infinite hidden Markov models."""
