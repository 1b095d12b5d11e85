"""Governors: health checks and rollback of hosts."""
