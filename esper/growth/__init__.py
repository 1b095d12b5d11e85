"""A host and its seeds as one program."""
