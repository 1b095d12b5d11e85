"""Judges a trained policy on fresh hosts: python -m esper.evaluate checkpoint=FOLDER

Every controller grows the same hosts, held out from training, with the same data orders. Accuracy is that of what was committed,
host and fossils, on the test part of the data, which nothing else touches.
"""

# N hosts

import json
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table

from esper.agent import PPO, Controller, ScheduleConfig
from esper.checkpoint import load
from esper.cli import in_one_sentence
from esper.config import CHECKPOINTS, GROUPS, Config, ConfigError, did_you_mean, from_plain
from esper.env.growth_env import GrowthEnv
from esper.episode import Episode, play
from esper.knobs import field_docs
from esper.stats import mean_interval
from esper.task.base import Split
from esper.trainer import build_env, find_checkpoint

PLAIN = tuple(name for name in GROUPS["agent"] if name not in ("ppo", "schedule"))
"""Controllers that need no checkpoint."""
POLICIES = ("policy", "policy_greedy")


@dataclass(kw_only=True, slots=True)
class EvaluateConfig:
    """One evaluation."""

    checkpoint: str = MISSING
    """Folder of a run, or one checkpoint file."""
    hosts: int = 64
    """Fresh hosts that every controller grows, at least 2. More: narrower intervals."""
    episode: int = 0
    """Which fresh hosts, at least 0: another number gives others."""
    controllers: list[str] = field(default_factory=lambda: [*POLICIES, *PLAIN])
    """Who is compared: the policy, drawing its actions as in training; policy_greedy, which takes the most probable ones; and the
    names of the agents that need no training. `wait` is always there to compare with."""
    schedules: bool = False
    """Also search the best fixed schedule of one seed, and an oracle that takes the best schedule for each host's kind.
    Both are chosen on other hosts."""

    def __post_init__(self) -> None:
        if self.hosts < 2:
            raise ValueError(f"hosts must be at least 2, got {self.hosts}: one host gives no interval")
        if self.episode < 0:
            raise ValueError(f"episode must be at least 0, got {self.episode}")
        known = [*POLICIES, *PLAIN]
        unknown = [name for name in self.controllers if name not in known]
        if unknown:
            raise ValueError(
                f"controllers={unknown[0]} is not known: choose out of {', '.join(known)}{did_you_mean(unknown[0], known)}"
            )


def parse(words: list[str]) -> EvaluateConfig:
    """The config of an evaluation from words key=value.

    Raises:
        ConfigError: a word does not fit.
    """
    names = [entry.name for entry in fields(EvaluateConfig)]
    for word in words:
        key, equals, _ = word.partition("=")
        if not equals:
            raise ConfigError(f"{word} is not of the form key=value: the keys are {', '.join(names)}")
        if key not in names:
            raise ConfigError(f"there is no key {key}: choose out of {', '.join(names)}{did_you_mean(key, names)}")
    if not any(word.startswith("checkpoint=") for word in words):
        raise ConfigError("checkpoint is not set: name the folder of a run, as in checkpoint=multirun/single/...")
    try:
        given = OmegaConf.from_dotlist(words)
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(EvaluateConfig), given))
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError(" ".join(str(error).split("\n")[:1])) from error
    assert isinstance(config, EvaluateConfig)
    return config


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a controller reached, host by host."""

    return_N: np.ndarray
    accuracy_N: np.ndarray
    params_N: np.ndarray
    instance: list[str]

    @staticmethod
    def of(episode: Episode) -> "Outcome":
        assert episode.test_accuracy_N is not None
        return Outcome(
            return_N=episode.return_N,
            accuracy_N=episode.test_accuracy_N,
            params_N=episode.params_N,
            instance=episode.instance,
        )


class Evaluation:
    """All controllers on the same hosts."""

    def __init__(self, given: EvaluateConfig) -> None:
        torch.set_num_threads(1)
        self.given, self.path = given, find_checkpoint(given.checkpoint, "checkpoint")
        state = load(self.path)
        self.config: Config = from_plain(state["config"])
        self.updates: int = state["update"]
        self._agent_state: dict[str, Any] = state["agent"]
        self.env = build_env(self.config, split=Split.HELD_OUT, hosts=given.hosts, test_at_end=True)

    def controller(self, name: str) -> Controller:
        """A controller by name; a policy is the one of the checkpoint."""
        if name not in POLICIES:
            return GROUPS["agent"][name](gamma=self.config.agent.gamma).build(self.env.layout, seed=self.config.seed)
        agent = self.config.agent.build(self.env.layout, seed=self.config.seed)
        if isinstance(agent, PPO):
            agent.load_state_dict(self._agent_state)
        return agent

    def grow(self, controller: Controller, env: GrowthEnv | None = None, *, greedy: bool = False) -> Outcome:
        """The outcome of one controller on the hosts of the evaluation, or of another environment."""
        env = env or self.env
        env.reset(options={"episode": self.given.episode})
        return Outcome.of(play(env, controller, greedy=greedy))

    def run(self) -> dict[str, Outcome]:
        """Outcomes by controller; `wait` is always among them."""
        names = list(dict.fromkeys([*self.given.controllers, "wait"]))
        outcomes = {name: self.grow(self.controller(name), greedy=name == "policy_greedy") for name in names}
        if self.given.schedules:
            outcomes |= self.search()
        return outcomes

    def search(self) -> dict[str, Outcome]:
        """The best fixed schedule of one seed (or of none), and the oracle's, chosen on hosts of the training split."""
        elsewhere = build_env(self.config, split=Split.TRAINING, hosts=self.given.hosts, test_at_end=True)
        layout = self.env.layout
        names = [(slot, blueprint) for slot in np.flatnonzero(self.env.chosen_S).tolist() for blueprint in layout.blueprint_names]
        there: dict[str, Outcome] = {"wait": self.grow(self.controller("wait"), elsewhere)}
        here: dict[str, Outcome] = {"wait": self.grow(self.controller("wait"))}
        for slot, blueprint in names:
            name = f"{blueprint} in {layout.slot_names[slot]}"
            schedule = ScheduleConfig(slot=slot, blueprint=blueprint).build(layout, seed=0)
            there[name], here[name] = self.grow(schedule, elsewhere), self.grow(schedule)
        elsewhere.close()
        best = max(there, key=lambda name: there[name].return_N.mean())
        kinds = np.array(there["wait"].instance)
        for_kind = {kind: max(there, key=lambda name: there[name].return_N[kinds == kind].mean()) for kind in np.unique(kinds)}
        chosen = [for_kind.get(kind, best) for kind in here["wait"].instance]

        def pick(key: str) -> np.ndarray:
            return np.array([getattr(here[name], key)[host] for host, name in enumerate(chosen)])

        oracle = Outcome(
            return_N=pick("return_N"),
            accuracy_N=pick("accuracy_N"),
            params_N=pick("params_N"),
            instance=here["wait"].instance,
        )
        return {f"best schedule ({best})": here[best], "oracle schedule by kind": oracle}


def summarise(outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """A row a controller: means with 95 % intervals over hosts, and paired differences to `wait`."""
    wait = outcomes["wait"]
    rows: list[dict[str, Any]] = []
    for name, outcome in outcomes.items():
        row: dict[str, Any] = {"controller": name, "parameters": float(outcome.params_N.mean())}
        for key, values, base in (
            ("return", outcome.return_N, wait.return_N),
            ("accuracy", outcome.accuracy_N, wait.accuracy_N),
        ):
            for label, sample in ((key, values), (f"{key}_over_wait", values - base)):
                interval = mean_interval(sample)
                row[label] = {"mean": interval.mean, "low": interval.low, "high": interval.high}
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]], title: str, console: Console) -> None:
    """The rows as a table."""
    table = Table(title=title, title_justify="left", caption_justify="left", caption=CAPTION)
    for heading in ("controller", "return", "over wait", "test accuracy", "over wait", "parameters"):
        table.add_column(heading, justify="left" if heading == "controller" else "right")
    for row in sorted(rows, key=lambda row: -row["return"]["mean"]):
        cells = [_cell(row[key]) for key in ("return", "return_over_wait", "accuracy", "accuracy_over_wait")]
        table.add_row(row["controller"], *cells, f"{row['parameters']:.0f}")
    console.print(table)


def by_host(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, list[Any]]]:
    """Every number of every host, for whoever wants to compare in another way."""
    return {
        name: {
            "instance": outcome.instance,
            "return": outcome.return_N.tolist(),
            "accuracy": outcome.accuracy_N.tolist(),
            "parameters": outcome.params_N.tolist(),
        }
        for name, outcome in outcomes.items()
    }


CAPTION = "Means over hosts ± half of the 95 % interval, in points; differences to wait are paired, host by host."


def _cell(interval: Mapping[str, float]) -> str:
    return f"{interval['mean']:.1f} ± {(interval['high'] - interval['low']) / 2:.1f}"


def help_text() -> str:
    """The page of --help."""
    lines = [(__doc__ or "").strip(), ""]
    default = EvaluateConfig(checkpoint="")
    for name, doc in field_docs(EvaluateConfig).items():
        value = getattr(default, name)
        shown = "FOLDER" if name == "checkpoint" else str(value).lower() if isinstance(value, bool) else value
        shown = f"[{','.join(value)}]" if isinstance(value, list) else shown
        lines += textwrap.wrap(f"{name}={shown}", 118, initial_indent="  ", subsequent_indent="  ")
        lines += textwrap.wrap(doc, 118, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)


def main(words: list[str]) -> None:
    """Evaluates, shows a table, and writes it as JSON beside the checkpoints."""
    if any(word in ("-h", "--help") for word in words):
        print(help_text())
        return
    with in_one_sentence():
        evaluation = Evaluation(parse(words))
        outcomes = evaluation.run()
        rows = summarise(outcomes)
        evaluation.env.close()
        given, config = evaluation.given, evaluation.config
        title = f"{given.hosts} fresh hosts x {config.steps} epochs, policy after {evaluation.updates} updates"
        show(rows, title, Console())
        folder = evaluation.path.parent.parent if evaluation.path.parent.name == CHECKPOINTS else evaluation.path.parent
        out = folder / f"evaluation_{evaluation.updates:06d}_episode{given.episode}.json"
        out.write_text(json.dumps({"title": title, "rows": rows, "hosts": by_host(outcomes)}, indent=1) + "\n")
        print(f"numbers: {out}")


if __name__ == "__main__":
    main(sys.argv[1:])
