"""Blueprints: what a seed may be."""
