"""The version of Esper, as commands print it."""

from importlib.metadata import PackageNotFoundError, version


def version_text() -> str | None:
    """Return the name and the version of this package; None if it is not installed."""
    try:
        return f"esper {version('esper-growth')}"
    except PackageNotFoundError:
        return None
