"""Controllers that do not learn."""
