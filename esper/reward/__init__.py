"""Rewards: modes, terms and reward-hacking checks."""
