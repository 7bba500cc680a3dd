"""Scans of the assignments that several structures use, and the compiled loops behind them."""
