"""Optimisers of hosts and seeds: each member is updated as if it were alone, all of them by one fused update."""
