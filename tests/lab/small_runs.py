"""Overrides of the smallest runs that can be compared."""

TINY = [
    "updates=1",
    "hosts=4",
    "steps=2",
    "task.epoch_samples=128",
    "task.valid_samples=100",
    "blueprint=[norm,conv_light]",
    "telemetry=quiet",
    "agent.minibatches=1",
    "agent.epochs=1",
]
