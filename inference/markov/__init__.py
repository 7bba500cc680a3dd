"""Forward-backward recursions over paths of hidden states, compiled and as tensor code."""
