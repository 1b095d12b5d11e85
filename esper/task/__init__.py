"""Data sets, objectives, and the hosts that are trained on them."""
