"""Many networks of one architecture as one program."""
