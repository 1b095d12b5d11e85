"""Overrides of the smallest runs that can be compared."""

TINY = [
    "updates=1",
    "hosts=4",
    "steps=2",
    "task.batch_size=1000",
    "blueprint=[norm,conv_light]",
    "telemetry=quiet",
    "agent.minibatches=1",
    "agent.epochs=1",
]
