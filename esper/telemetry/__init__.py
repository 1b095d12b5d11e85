"""Telemetry: metric tags, writers, anomalies."""
