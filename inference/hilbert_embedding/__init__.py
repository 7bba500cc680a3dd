"""Kernel mean embedding of DP mixtures: weights of fixed components by a quadratic program.

Source: docs/derivations/hilbert-embedding, "The quadratic program".
"""
