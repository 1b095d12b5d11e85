"""The command line: error boundary, overrides, help, transfer of a run's config to an evaluation."""
