"""The small-variance limit of latent features."""
