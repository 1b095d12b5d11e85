"""Metrics: names, writers, anomalies."""
