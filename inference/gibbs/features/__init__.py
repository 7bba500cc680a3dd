"""Gibbs sampling of latent features."""
