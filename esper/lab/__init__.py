"""Many runs: design, launch, tuning, scoring and comparison."""
