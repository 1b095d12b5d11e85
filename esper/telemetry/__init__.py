"""What is measured, under which name, and where it goes."""

from esper.telemetry.anomalies import AnomaliesConfig, Anomaly, Findings, Kind, Watch
from esper.telemetry.config import QuietConfig, Telemetry, TelemetryConfig
from esper.telemetry.tags import METRICS, Metric, UnknownTagError, Value, measured, under
from esper.telemetry.writers import JsonlWriter, TensorBoardWriter, Writer, read_events, read_records

__all__ = [
    "METRICS",
    "AnomaliesConfig",
    "Anomaly",
    "Findings",
    "JsonlWriter",
    "Kind",
    "Metric",
    "QuietConfig",
    "Telemetry",
    "TelemetryConfig",
    "TensorBoardWriter",
    "UnknownTagError",
    "Value",
    "Watch",
    "Writer",
    "measured",
    "read_events",
    "read_records",
    "under",
]
