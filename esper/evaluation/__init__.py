"""Evaluation of controllers on held-out hosts, and the networks and policies that are passed on."""
