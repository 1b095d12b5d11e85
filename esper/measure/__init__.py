"""Measurements of hosts and seeds: counterfactuals, attribution, growth potential, costs, latency."""
