"""The machinery of compiled code: decorators, the cache, and functions that several kernels call."""
