"""Seeds: blueprints, banks of parameters, and initial weights."""
