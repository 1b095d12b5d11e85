"""Environments in the form that other libraries take."""
