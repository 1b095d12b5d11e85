"""Seeds: blueprints, banks of parameters, and first weights."""
