"""Data sets, objectives, and the hosts that learn them."""
