"""The command line: error boundary, overrides, help, and the transfer of a run's config to an evaluation."""
