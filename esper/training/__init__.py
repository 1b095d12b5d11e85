"""One run: the trainer, its episodes, its config on disk, and its decision log."""
