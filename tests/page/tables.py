"""Traces and evaluations of few hosts, for the tests of the page."""


def table(returns: list[float], op: str = "wait") -> dict:
    """Return a trace of hosts with two epochs, which act in the first."""
    hosts = len(returns)
    columns = {
        "epoch": [1.0, 2.0] * hosts,
        "host": [float(host) for host in range(hosts) for _ in range(2)],
        "kind": ["a"] * 2 * hosts,
        "op": [op, "wait"] * hosts,
        "slot": ["s0" if op == "germinate" else None, None] * hosts,
        "blueprint": ["conv" if op == "germinate" else None, None] * hosts,
        "rolled_back": [None] * 2 * hosts,
        "s0.stage": ["training", "blending"] * hosts,
        "s0.contribution": [None, 3.0] * hosts,
    }
    ends = {"return": returns, "test_accuracy": returns}
    return columns | {name: [value for one in values for value in (None, one)] for name, values in ends.items()}


def report(hosts: int, **controllers: float) -> dict:
    """Return an evaluation in which a controller has this return and test accuracy on every host, alternately one more."""

    def one(value: float) -> dict:
        values = [value + host % 2 for host in range(hosts)]
        return {
            "return": values,
            "accuracy": values,
            "parameters": [50] * hosts,
            "flops": [2000] * hosts,
            "instance": ["a"] * hosts,
        }

    return {"title": f"{hosts} held-out hosts", "hosts": {name: one(value) for name, value in controllers.items()}}
