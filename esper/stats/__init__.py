"""Statistics of experiments: pure functions of arrays."""
