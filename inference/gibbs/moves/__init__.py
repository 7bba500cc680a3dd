"""Split-merge proposals, the Gaussian fits of block classifiers that they use, and tempering."""
