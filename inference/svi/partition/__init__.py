"""Variational inference of mixtures of classifiers."""
