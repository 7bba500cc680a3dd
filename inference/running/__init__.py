"""The engine that runs kernels: chains, processes, checkpoints, interrupts, reports and files."""
