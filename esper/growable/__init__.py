"""`esper.grow`: slots and seeds in any PyTorch module, with a training loop of your own."""
