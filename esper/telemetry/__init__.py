"""What is measured, under which name, and where it goes."""

from esper.telemetry.config import QuietConfig, Telemetry, TelemetryConfig
from esper.telemetry.tags import METRICS, Metric, UnknownTagError, Value, measured, under
from esper.telemetry.writers import JsonlWriter, TensorBoardWriter, Writer, read_records

__all__ = [
    "METRICS",
    "JsonlWriter",
    "Metric",
    "QuietConfig",
    "Telemetry",
    "TelemetryConfig",
    "TensorBoardWriter",
    "UnknownTagError",
    "Value",
    "Writer",
    "measured",
    "read_records",
    "under",
]
