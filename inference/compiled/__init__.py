"""Machinery for compiled code: decorators, the cache of machine code, and functions that several kernels call."""
