"""Variational inference of topic models."""
