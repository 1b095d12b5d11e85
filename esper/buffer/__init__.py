"""Buffers of experience."""
