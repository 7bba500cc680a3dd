"""The small-variance limit of multi-label models."""
