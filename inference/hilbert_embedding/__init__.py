"""Kernel mean embedding of DP mixtures: weights of fixed components by a quadratic program (math/dp-mixtures, 9)."""
