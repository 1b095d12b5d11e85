"""The lifecycle of a seed, as pure functions on arrays."""
