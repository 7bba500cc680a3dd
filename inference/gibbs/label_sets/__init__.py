"""Gibbs sampling of multi-label models."""
