"""Evaluate the controller of a run on held-out hosts: python -m esper.evaluate checkpoint=FOLDER

Every controller grows the same hosts with the same data orders; their random streams differ from those of training. Accuracy is
that of the committed network, host and fossils, on the test split of the data, which nothing else uses.

Append overrides of esper.train to evaluate the policy on another task or with other settings: task=mnist5k slots=every_block
steps=40. A chosen group starts from its defaults, everything else stays as in training, and the title of the table marks it as a
transfer. --config-dir FOLDER adds options of your own, as in esper.train.
"""

import shlex
import sys
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from esper.cli import rehearsal

if __name__ == "__main__":
    rehearsal.rehearse(sys.argv[1:])

from rich.console import Console
from rich.markup import escape

from esper.agent.best_of_random import Times
from esper.cli.command import evaluating
from esper.cli.keyvalue import help_of, read_overrides, show_help
from esper.cli.overrides import config_of
from esper.cli.transfer import TRANSFERABLE, check_transferable, is_run_override
from esper.config import ConfigError, standalone_agents, unknown_controller
from esper.evaluation.held_out import POLICIES, REPLAY, Evaluation
from esper.evaluation.journal import LATENCY, Journal
from esper.evaluation.outcomes import summarise
from esper.evaluation.per_host import OBJECTIVES, HostSearch, check_method, names
from esper.evaluation.presentation import baseline_sentence, figure, oracle_sentence, show, show_details, verdict, write_new
from esper.evaluation.progress import Progress
from esper.files import write_whole
from esper.notices import StatusLine, UserNotice, heard_by, notice
from esper.page.page import write_page
from esper.ranges import check_ranges
from esper.text import counted
from esper.training.config_io import to_plain
from esper.training.provenance import versions
from esper.training.resume import find_checkpoint, may_hold_checkpoint, run_of
from esper.training.run_folder import CHECKPOINTS, PAGE, check_writable, writing_reports


@dataclass(kw_only=True, slots=True)
class EvaluateConfig:
    """Settings of an evaluation: controllers compared on the same held-out hosts."""

    checkpoint: str = ""
    """Folder of a run, for its newest checkpoint; FOLDER/best, for the policy with the highest return in training; or a file."""
    hosts: int = 64
    """Held-out hosts that every controller grows, at least 2. Higher: narrower intervals, longer evaluation."""
    episode: int = 0
    """Index of the set of held-out hosts, at least 0: another index takes other hosts of the same kinds. `run.html` shows
    the first hosts of set 0."""
    controllers: list[str] = field(default_factory=lambda: list[str]())
    """Controllers to compare: policy, the controller of the run with sampled actions, as in training; policy_greedy, the
    same with the most probable actions (agent=ppo); replay, the topologies that `policy` kept, grown from the start, host by
    host; and the names of agents that need no training. Empty: all but replay. `wait` is always included."""
    schedules: bool = False
    """If true, also search for the best schedule of one seed, planted in the first epoch, for an oracle that picks the best such
    schedule for each kind of host, and the best static net, whose one seed is active from initialisation, without incubation. All
    are chosen on other hosts, by their return. Takes as long as 2 * (1 + slots * blueprints) more controllers."""
    online: bool | None = None
    """If true, also measure test accuracy after every host epoch, and report its mean over the episode, the online accuracy.
    Takes longer. null: true where the reward pays the accuracy of every epoch, as reward=online does; there, it stands in
    place of the final test accuracy."""
    search_per_host: list[str] = field(default_factory=lambda: list[str]())
    """Searches that train every host several times, each time with another schedule, and keep the best training by `search_by`:
    random (the first schedule grows nothing), halving (successive halving of more random schedules), hyperband, tpe (Optuna's
    tree of Parzen estimators, after four random schedules), enumerate (no seed, and every schedule with one seed planted at the
    start), and static_nets (no seed, and every network with one seed that is active from initialisation, without incubation).
    FLOPs are summed over all trainings."""
    trainings: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16])
    """Budgets of each search, in full trainings per host, at least 1; without effect on enumerate and static_nets."""
    search_by: str = "return"
    """Objective of `search_per_host`, on the validation split: return, or validation for the accuracy of the committed
    network."""
    details: bool = False
    """If true, also print the intervals of all means, and FLOPs; the file has all numbers in any case."""
    search_times: Times | None = None
    """Distribution of the planting times in the schedules of `search_per_host`, uniform or early; null: early, or uniform for a
    task with events."""

    def __post_init__(self) -> None:
        if not self.checkpoint:
            raise ValueError("checkpoint is not set: name the folder of a run, as in checkpoint=multirun/single/...")
        check_ranges("", self, {"[2, inf]": ["hosts"], "[0, inf]": ["episode"]})
        for method in self.search_per_host:
            check_method("search_per_host", method)
        if self.search_by not in OBJECTIVES:
            raise ValueError(f"search_by={self.search_by} is not known: choose from {', '.join(OBJECTIVES)}")
        if min(self.trainings, default=0) < 1:
            raise ValueError(f"trainings must be numbers of at least 1, got {self.trainings}: the default is [1,2,4,8,16]")
        known = [*POLICIES, REPLAY, *standalone_agents()]
        unknown = [name for name in self.controllers if name not in known]
        if unknown and unknown[0] in ("oracle", "schedule"):
            raise ValueError(f"controllers={unknown[0]} is not chosen here: schedules=true adds the best schedule and the oracle")
        if unknown:
            raise ValueError(unknown_controller("controllers", unknown[0], known))


def parse(arguments: list[str]) -> EvaluateConfig:
    """Parse the key=value arguments of an evaluation, leaving out the overrides of the run.

    Raises:
        ConfigError: an argument is invalid.
    """
    _refuse_bare_folder(arguments)
    asked = read_overrides(EvaluateConfig, arguments, also=TRANSFERABLE)
    typed = [key for argument in arguments if (key := argument.partition("=")[0]) in ("trainings", "search_by", "search_times")]
    if typed and not asked.search_per_host:
        warnings.warn(f"without effect, since search_per_host is empty: {', '.join(typed)}", UserNotice, stacklevel=2)
    return asked


def title(evaluation: Evaluation) -> str:
    """Return the title of the table; for a transfer, it names both settings."""
    config, agent = evaluation.config, evaluation.config.choice("agent")
    line = f"{evaluation.hosts} held-out hosts x {config.steps} epochs, {agent} after {counted(evaluation.updates, 'update')}"
    return "\n".join(filter(None, [line, evaluation.transfer.title, _foreign_reward(evaluation)]))


def _foreign_reward(evaluation: Evaluation) -> str:
    """Return a line on the reward if a policy is evaluated on another task, and runs of that task are paid otherwise."""
    task = next((one for one in evaluation.transfer.target if one.startswith("task=")), None)
    usual, paid = "", evaluation.config.choice("reward")
    with warnings.catch_warnings(action="ignore"), suppress(ConfigError):  # such as a task that needs keys beside its name
        usual = config_of([task]).choice("reward") if task else ""
    return f"reward={paid}; to pay what runs of this task are usually paid, add reward={usual}" if usual not in ("", paid) else ""


def controllers_of(asked: EvaluateConfig) -> list[str]:
    """Return the controllers that are asked for, with the policy if searches are compared with it; empty for all."""
    return [*asked.controllers, "policy"] if asked.controllers and asked.search_per_host else asked.controllers


def growths(evaluation: Evaluation, asked: EvaluateConfig, search: HostSearch | None) -> int:
    """Return how often the evaluation will grow its hosts, without the further schedules of an oracle, which are chosen later."""
    count = len(evaluation.names(controllers_of(asked)))
    count += search.planned(names(asked.search_per_host, asked.trainings)) if search else 0
    return count + (2 * evaluation.num_schedules + 2 if asked.schedules else 0)


def main(arguments: list[str]) -> None:
    """Evaluate, print a table, and write it as JSON beside the checkpoints."""
    if any(argument in ("-h", "--help") for argument in arguments):
        show_help(help_of(__doc__, EvaluateConfig(checkpoint="FOLDER")))
        return
    with evaluating(arguments) as given:
        asked = parse([argument for argument in given if not is_run_override(argument)])
        if may_hold_checkpoint(asked.checkpoint):
            rehearsal.end(shows=True)
        overrides = [argument for argument in given if is_run_override(argument)]
        check_transferable(overrides)  # errors come before any line about progress
        check_writable(run_of(find_checkpoint(asked.checkpoint, "checkpoint")))
        with heard_by(StatusLine(sys.stderr)):
            notice(f"building {asked.hosts} held-out hosts")
            evaluation = Evaluation.load(
                asked.checkpoint, hosts=asked.hosts, episode=asked.episode, online=asked.online, overrides=overrides
            )
            notice()
        folder = run_of(evaluation.checkpoint)
        settings = {name: value for name, value in asdict(asked).items() if name not in ("checkpoint", "details")}
        evaluation.journal = _journal(folder, evaluation, settings)
        try:
            report = _evaluate(evaluation, asked, settings)
        except KeyboardInterrupt:
            command = f"python -m esper.evaluate {shlex.join(arguments)}"
            print(f"esper: interrupted; {_results(evaluation.journal.kept)}; resume with: {command}", file=sys.stderr)
            sys.exit(130)
        score = evaluation.config.task.build_objective().score
        _display(report, asked, score)
        _write(report, folder, evaluation, asked, score)
        evaluation.journal.remove()
        if (folder / CHECKPOINTS).is_dir() or (folder / PAGE).exists():
            write_page(folder, hosts=0)
            print(f"page: {folder / PAGE}")
        else:  # a saved policy
            print(f"what it does, host by host: python -m esper.report {shlex.quote(str(folder))}")


def _write(report: dict[str, Any], folder: Path, evaluation: Evaluation, asked: EvaluateConfig, score: str) -> None:
    """Write the numbers and the figure of an evaluation, and print their paths."""
    parts = ["evaluation", f"{evaluation.updates:06d}", f"{asked.hosts}_hosts", f"episode{asked.episode}"]
    stem = "_".join(filter(None, [*parts, evaluation.transfer.slug]))
    with writing_reports(folder):
        out = write_new(folder, stem, report)
        drawn = figure(report["rows"], asked.hosts, score=score, headline=report["headline"])
        if drawn:
            write_whole(out.with_suffix(".svg"), drawn + "\n")
    print(f"numbers: {out}", *([f"figure: {out.with_suffix('.svg')}"] if drawn else []), sep="\n")


def _refuse_bare_folder(arguments: list[str]) -> None:
    """Raise ConfigError if a folder is given without its key."""
    for argument in arguments:
        if "=" not in argument and Path(argument).exists():
            raise ConfigError(f"{argument} is given without a key: did you mean checkpoint={argument}?")


def _journal(folder: Path, evaluation: Evaluation, settings: dict[str, Any]) -> Journal:
    """Return the journal of this evaluation, with what an earlier process kept, after a line about it."""
    code, config = versions(), to_plain(evaluation.config)
    facts = {"checkpoint": evaluation.digest, "code": code["source"], "plugins": code.get("plugins"), "config": config}
    facts |= evaluation.env.hparams()  # the fingerprint of the data
    journal = Journal(folder, facts | {"settings": settings})
    known = journal.recall(LATENCY)
    if (measured := evaluation.measure(known)) and not known:
        journal.keep(LATENCY, measured)
    if journal.recalled:
        print(f"resuming an interrupted evaluation: {_results(journal.recalled)}")
    return journal


def _results(number: int) -> str:
    """Return in words how many results of controllers an interrupted evaluation has kept."""
    return f"{counted(number, 'result')} {'is' if number == 1 else 'are'} kept"


def _evaluate(evaluation: Evaluation, asked: EvaluateConfig, settings: dict[str, Any]) -> dict[str, Any]:
    """Return all numbers of an evaluation: settings, rows, and the outcomes of every host."""
    methods, transfer = asked.search_per_host, evaluation.transfer
    search = HostSearch(evaluation, by=asked.search_by, times=asked.search_times) if methods else None
    evaluation.progress = Progress(growths(evaluation, asked, search), sys.stderr)
    outcomes = evaluation.run(controllers_of(asked))
    if asked.schedules:
        outcomes |= evaluation.search()
    searches = {name: search.run(name) for name in names(methods, asked.trainings) if search}
    evaluation.progress.close()
    evaluation.env.close()
    searched = summarise({"policy": outcomes["policy"], **searches}, against="policy") if searches else []
    report: dict[str, Any] = {"title": title(evaluation), "seed": evaluation.config.seed, "episode": asked.episode}
    report |= {"settings": settings, "headline": evaluation.headline}
    report |= {"transfer": asdict(transfer)} if transfer.slug else {}
    report |= ({"searches": searched} if searched else {}) | ({"unseen_kinds": evaluation.unseen} if evaluation.unseen else {})
    grown = (outcomes | searches).items()
    hosts = {name: {"instance": one.instance, **one.lists(), "kept": one.kept, "seeds": one.seeds} for name, one in grown}
    return {**report, "rows": summarise(outcomes), "hosts": hosts}


def _display(report: dict[str, Any], asked: EvaluateConfig, score: str) -> None:
    """Print the verdict and the tables of an evaluation."""
    console, rows, shown = Console(), report["rows"], {"score": score, "headline": report["headline"]}
    console.print(escape(verdict(rows, **shown)), style="bold", highlight=False)
    for found in filter(None, (baseline_sentence(report), oracle_sentence(report))):
        console.print(escape(found), highlight=False)
    show(rows, report["title"], console, **shown)
    if asked.details or asked.online:
        show_details(rows, console, score=score)
    if searched := report.get("searches"):
        show(searched, f"Search per host by {asked.search_by}", console, against="policy", **shown)


if __name__ == "__main__":
    main(sys.argv[1:])
