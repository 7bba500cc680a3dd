"""Binary features that several structures share: their rows, their loadings, and a projection of tasks."""
