"""Hosts in service against hosts that learn: an episode of frozen hosts skips all that no learning seed needs.

    python benchmarks/deployed_hosts.py
    python benchmarks/deployed_hosts.py --task mnist5k_drift --hosts 64 --rounds 5

Both run the same task with the same actions: none, half or all of the hosts germinate a seed in the first epoch, which learns for
8 of 20 epochs (`digits_drift`) or 4 (`mnist5k_drift`). Frozen hosts train only while a seed learns in them, and are measured
only when a seed has learnt or their data have drifted; the others train and are measured in every epoch. Results:
benchmarks/README.md.
"""

import argparse
from functools import partial
from tempfile import TemporaryDirectory

import torch
from paired_timing import in_turn, print_comparison

from esper.agent.scripted.schedule import ActionConfig, ActionLists
from esper.cli.overrides import check
from esper.env.base import Environment
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play


def episode(env: Environment, seeds: int) -> None:
    """Run an episode in which the first hosts germinate one seed each."""
    env.reset(options={"episode": 0})
    germinate = ActionConfig(slot=1, blueprint="conv_light")
    record = play(env, ActionLists([[germinate] if host < seeds else [] for host in range(env.num_envs)], env.layout))
    assert (record.kept_NS >= 0).sum() == seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits_drift", choices=["digits_drift", "mnist5k_drift"])
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a few hosts and epochs: checks the script, measures nothing")
    given = parser.parse_args()
    hosts, rounds, more = given.hosts, given.rounds, list[str]()
    if given.quick:
        hosts, rounds, more = 4, 1, ["steps=6", "task.pretrain=1", "task.pretrain_pool=2", "task.events.kinds=[]"]
        more += ["task.epoch_samples=128", "task.valid_samples=64"]
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        common = [f"task={given.task}", f"task.pretrain_folder={folder}", f"hosts={hosts}", *more]
        frozen, learning = (check([*common, f"host.frozen={value}"]) for value in ("true", "false"))
        configs = {"frozen": frozen, "learning": learning}
        envs = {name: build_env(config, split=Split.TRAINING, hosts=hosts) for name, config in configs.items()}
        for seeds in (0, hosts // 2, hosts):
            runs = {name: partial(episode, env, seeds) for name, env in envs.items()}
            for run in runs.values():
                run()  # pretrains the hosts, and warms up
            print(f"\n{given.task}, {hosts} hosts, {seeds} seeds, episodes of {frozen.steps} epochs")
            print_comparison(in_turn(runs, rounds), "frozen", f"{seeds} seeds")
        for env in envs.values():
            env.close()


if __name__ == "__main__":
    main()
