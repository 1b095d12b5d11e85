"""Esper: a controller watches networks train, and grows them."""
