"""The life of a seed, as pure functions on arrays."""
