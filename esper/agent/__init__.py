"""Controllers: a policy that learns, a search, and scripts."""
