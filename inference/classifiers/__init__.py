"""Updates of the classifiers that every structure shares."""
