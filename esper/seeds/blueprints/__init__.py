"""Blueprints: the architectures of seeds."""
