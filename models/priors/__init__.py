"""Priors over latent structure."""
