"""The engine around every kernel: chains, processes, checkpoints, interrupts, reports and files."""
