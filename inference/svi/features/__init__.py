"""Variational inference of latent features."""
