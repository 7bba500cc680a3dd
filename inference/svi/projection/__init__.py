"""Variational inference of tasks that share a binary projection."""
