"""The networks that grow: hosts, seeds, and the rules of their life."""
