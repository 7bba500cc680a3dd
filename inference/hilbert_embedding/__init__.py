"""Kernel mean embedding of DP mixtures (docs/derivations/hilbert-embedding, "The quadratic program")."""
