"""The page docs/rewards.md: `python -m esper.reward.page > docs/rewards.md` writes it anew."""

from dataclasses import MISSING, fields

from esper.lifecycle.stages import Stage
from esper.reward.modes import MODES, RewardConfig
from esper.reward.terms import STAGE_VALUE

INTRO = """\
# Rewards

Generated from `esper/reward` by `python -m esper.reward.page > docs/rewards.md`; do not edit by hand.

A mode is a set of weighted terms, and the reward of a step is their sum, in points: one point is one percentage point of accuracy
of the network that is left at the end. Choose a mode as in `reward=escrow`, drop a term by weight 0 as in `reward.rent=0`, weigh
it anew as in `reward.rent=2`. Terms of weight 0 are not computed, and have no metric. What each term paid is the metric
`reward/<component>`. The governor's penalty comes on top, as `reward/governor`.

The tables show each weight with its sign, - for what is charged. It is typed without: `reward.rent=0.5` for a weight of -0.5.

Terms that go by slot are summed over slots: what is paid does not depend on the slot that an action names. A quantity with a
prime is that after the step. `c` is what a seed contributes (accuracy with it less accuracy without it), `g` is what the host
gained since the seed was planted, less what its neighbours came to contribute meanwhile; `c0` and `g0` are those of the step that
kept it. A host that was rolled back in a step is paid nothing that was measured in it, and what a term had paid for a seed that
is gone is taken back.

Potentials make one component, `shaping`: `gamma * Phi(s') - Phi(s)`, with the true state after the step, gamma of the agent, and
Phi = 0 where the transition ends a (sub-)episode. Its discounted sum over a (sub-)episode is `-Phi(s_0)` under any policy, so it
does not change which policy is best.

A rollback ends a sub-episode, and the next one starts from the snapshot, whose potential it is charged for. The learner sees
exactly that. Reported returns (`policy/return`, `mode/<name>`, `reward/shaping`, evaluation) leave this second charge out: they
add `gamma * Phi(snapshot)` to the transition, as if it had led to the restored state. So a rollback costs the penalty and what
the host lost by it, and not the accuracy that it still has. The last step of an episode stays as it is: nothing follows it.

`reward.per_host={shaped:16,sparse:16}` pays some hosts of a training run by one mode and some by another. The counts add up to
`hosts`, twins are not parted, and the mode of the run (`reward=`) is among them: its other keys hold for its hosts, and
evaluation pays by it alone. The metrics `mode/<name>` are the returns of each mode; `reward/<component>` is the mean over all
hosts, 0 where a host's mode does not have it. All modes pay in points and read the same signals, so any of them go together.

Metrics under `audit/` ask whether what is paid is what is meant, and `telemetry.anomalies` says when they raise an alarm.
"""


def page() -> str:
    """docs/rewards.md."""
    worth = ", ".join(f"{stage.name.lower()} {STAGE_VALUE[stage]:g}" for stage in Stage)
    parts = [INTRO, f"Worth of stages: {worth}.\n"]
    for name, mode in MODES.items():
        parts += [f"## {name}", "", " ".join((mode.__doc__ or "").split()), ""]
        parts += ["| key | weight | unit | component | formula | source |", "|---|---|---|---|---|---|", *_rows(mode), ""]
        if others := [entry for entry in fields(mode) if entry.name not in (*mode.pays, "per_host")]:
            told = ", ".join(f"`reward.{entry.name}={_default(entry.default)}`" for entry in others)
            parts += [f"And {told}.", ""]
    return "\n".join(parts).rstrip() + "\n"


def _rows(mode: type[RewardConfig]) -> list[str]:
    weights = {entry.name: entry.default for entry in fields(mode)}

    def weight(key: str, sign: int) -> str:
        return f"{sign * float(str(weights[key])) + 0.0:g}"

    return [
        f"| `{key}` | {weight(key, term.sign)} | {term.unit} | `{term.name}` | {term.formula} | {term.source} |"
        for key, term in mode.pays.items()
    ]


def _default(value: object) -> str:
    assert value is not MISSING
    return str(value)


if __name__ == "__main__":
    print(page(), end="")
