"""Draw docs/host.png, one host of digits that grows under the heuristic controller: `python docs/host_figure.py`."""

# S slots, T steps

import argparse
from contextlib import closing
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # before pyplot: no display is needed
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from esper.buffer.transition import Transition
from esper.cli.overrides import check
from esper.env.actions import Head
from esper.lifecycle.stages import Op, Stage
from esper.reward.signals import StepSignals
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play

OUT = Path(__file__).parent / "host.png"
OVERRIDES = ["slots=all", "seed=0", "devices=[cpu]"]
STAGES = {
    Stage.TRAINING: "#f4cf73",
    Stage.BLENDING: "#9cc9e8",
    Stage.HOLDING: "#c5a3d9",
    Stage.FOSSILIZED: "#8fcf9f",
}
MARKERS = {Op.GERMINATE: "o", Op.ADVANCE: ">", Op.FOSSILIZE: "s", Op.PRUNE: "X"}
GROWN, PLAIN = "#1f6f3d", "#777777"


class Recording:
    """The run of one held-out host under a controller."""

    def __init__(self, agent: str, steps: int) -> None:
        config = check([f"agent={agent}", f"steps={steps}", *OVERRIDES])
        transitions: list[Transition] = []
        with closing(build_env(config, split=Split.HELD_OUT, hosts=1)) as env:
            env.reset(options={"episode": 0})
            play(env, config.agent.build(env.layout, seed=0, buffer=config.buffer.build()), record=transitions.append)
            self.slots, self.blueprints = len(env.layout.slot_names), env.layout.blueprint_names
        self.action_TH = [step.decision.action[0] for step in transitions]
        self.steps: list[StepSignals] = [step.signals for step in transitions if step.signals is not None]

    def accuracy(self) -> list[float]:
        """Return the validation accuracy at birth and after every host epoch [pp]."""
        return [float(self.steps[0].accuracy_before_N[0]), *(float(step.accuracy_N[0]) for step in self.steps)]


def draw_slot(axes: Axes, run: Recording, slot: int) -> None:
    """Draw a slot: colours for the stages, a line for alpha, a marker for every action."""
    for epoch, step in enumerate(run.steps):
        if colour := STAGES.get(Stage(int(step.after.stage[0, slot]))):
            axes.axvspan(epoch, epoch + 1, color=colour, linewidth=0)
    alpha = [float(step.after.alpha[0, slot]) for step in run.steps]
    axes.stairs(alpha, baseline=None, color="black", linewidth=1.5, clip_on=False, zorder=3)
    for epoch, (action, step) in enumerate(zip(run.action_TH, run.steps, strict=True)):
        op = Op(int(step.op_N[0]))
        if op in MARKERS and action[Head.SLOT] == slot:
            axes.plot(epoch, 1.3, MARKERS[op], color="black", markersize=6, clip_on=False)
            if op is Op.GERMINATE:
                axes.text(epoch - 0.3, 1.3, run.blueprints[action[Head.BLUEPRINT]], fontsize=9, va="center", ha="right")
    axes.set(ylim=(0, 1.6), yticks=[0, 1])
    axes.set_ylabel(f"slot {slot + 1}\nalpha")


def draw(grown: Recording, plain: Recording, out: Path) -> None:
    """Write the figure: accuracy above, one row per slot below."""
    ratios = [2.6, *[1.0] * grown.slots]
    figure, rows = plt.subplots(
        len(ratios), 1, sharex=True, figsize=(8, 5.6), height_ratios=ratios, layout="constrained", squeeze=False
    )
    top, *slots = rows[:, 0]
    for run, colour, style, label in ((grown, GROWN, "-", "with growth"), (plain, PLAIN, "--", "same host, never grown")):
        accuracy = run.accuracy()
        top.plot(accuracy, style, color=colour, linewidth=2, label=label)
        top.annotate(f"{accuracy[-1]:.0f} %", (len(accuracy) - 1, accuracy[-1]), (4, 0), textcoords="offset points", va="center")
    top.set_ylabel("validation\naccuracy [%]")
    top.set(ylim=(0, 100), xlim=(0, len(grown.steps)))
    top.legend(loc="lower right", frameon=False)
    for slot, axes in enumerate(slots):
        draw_slot(axes, grown, slot)
    for axes in rows[:, 0]:
        axes.spines[["top", "right"]].set_visible(False)
    slots[-1].set_xlabel("host epochs")
    handles = [Patch(color=colour, label=stage.name.lower()) for stage, colour in STAGES.items()]
    handles += [Line2D([], [], color="black", label="alpha")]
    handles += [
        Line2D([], [], color="black", marker=marker, linestyle="", label=op.name.lower()) for op, marker in MARKERS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.savefig(out, dpi=100, facecolor="white")
    plt.close(figure)


def main() -> None:
    """Record both runs and draw them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run only 4 host epochs")
    parser.add_argument("--out", type=Path, default=OUT, help="PNG to write")
    asked = parser.parse_args()
    steps = 4 if asked.quick else 25
    draw(Recording("heuristic", steps), Recording("wait", steps), asked.out)


if __name__ == "__main__":
    main()
