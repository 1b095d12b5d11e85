"""What a task brings along unless something else is chosen: host, optimiser, governor, reward and slots."""

import dataclasses

import pytest
import yaml

import esper
from esper import config as C
from esper.cli.help import yaml_names
from esper.cli.overrides import check, check_over
from esper.governor.watchdog import StrictWatchdogConfig, TolerantWatchdogConfig, WatchdogConfig
from esper.hosts.cnn import CNNConfig
from esper.hosts.custom import CustomConfig
from esper.hosts.mlp import MLPConfig
from esper.hosts.transformer import TransformerConfig
from esper.optimisers.adamw import AdamWConfig
from esper.optimisers.sgd import NesterovConfig, SGDConfig
from esper.task.digits import DigitsConfig
from tests.composed import check_sweep


def replaced(preset: str) -> tuple[str, ...]:
    """Return the groups whose options a preset of a task replaces."""
    defaults = yaml.safe_load((C.CONF / "task" / f"{preset}.yaml").read_text())["defaults"]
    return tuple(sorted(key for choice in defaults if isinstance(choice, dict) for key in choice))


@pytest.mark.parametrize("name", yaml_names("task"))
def test_every_preset_of_a_task_has_another_host(name: str) -> None:
    config = check([f"task={name}"])
    base = check([f"task={C.table_name('task', type(config.task))}"])
    assert (config.task == base.task) == (not config.host.frozen), "a world of deployed hosts has keys of its own"
    assert config.host != base.host
    assert set(yaml.safe_load((C.CONF / "task" / f"{name}.yaml").read_text())) <= {"defaults", "task"}


@pytest.mark.parametrize("name", {replaced(name): name for name in yaml_names("task")}.values())
def test_what_is_chosen_replaces_what_a_preset_brings(name: str) -> None:
    """With one preset for every set of groups that a preset replaces."""
    chosen = check([f"task={name}", "slots=one_seed", "env=growth", "reward=sparse", "blueprint=[norm]"])
    plain = check(["slots=one_seed", "env=growth", "reward=sparse"])
    assert (chosen.slots, chosen.env, chosen.reward) == (plain.slots, plain.env, plain.reward)
    assert list(chosen.blueprint) == ["norm"]


@pytest.mark.parametrize("name", list(C.GROUPS["task"]))
def test_a_task_comes_with_its_default_host(name: str) -> None:
    default = check([f"task={name}"])
    chosen = C.GROUPS["task"][name].default_host
    assert check([f"host={chosen}", f"task={name}"]) == default


@pytest.mark.parametrize("name", {kind.default_host: name for name, kind in C.GROUPS["task"].items()}.values())
def test_the_host_of_a_task_replaces_that_of_an_experiment_and_is_replaced_by_a_choice(name: str) -> None:
    """With one task for every default host."""
    default = check([f"task={name}"])
    assert check([f"experiment={'python_text' if name == 'digits' else 'healthy'}", f"task={name}"]).host == default.host
    mine = ["host=custom", "host.path=mine:Host", "task.instances=healthy"]
    context = default.host.sequence_length()
    assert type(check([f"task={name}", *mine, f"host.context={context}"]).host) is CustomConfig


def test_a_task_comes_with_its_default_governor_and_takes_another(own_parts: None) -> None:
    @dataclasses.dataclass(kw_only=True, slots=True)
    class DriftingConfig(DigitsConfig):
        """Digits that drift."""

        default_governor = "tolerant"

    esper.register("task", "drifting", DriftingConfig)
    trained = check(["task=drifting", "governor.penalty=3"])
    assert trained.governor == TolerantWatchdogConfig(penalty=3)
    assert check(["task=drifting", "governor=strict"]).governor == check(["governor=strict", "task=drifting"]).governor
    assert type(check(["governor=strict", "task=drifting"]).governor) is StrictWatchdogConfig
    assert [type(job.governor) for job in check_sweep(["task=drifting,digits"])] == [TolerantWatchdogConfig, WatchdogConfig]
    assert check_over(trained, ["steps=30"]).governor == trained.governor
    assert check_over(trained, ["task=digits"]).governor == WatchdogConfig()
    assert check_over(check([]), ["task=drifting"]).governor == TolerantWatchdogConfig()


def test_a_world_brings_its_objective_and_slots_unless_others_are_chosen() -> None:
    world, plain = check(["task=digits_drift"]), check([])
    assert (world.choice("reward"), world.choice("slots"), world.host.frozen) == ("online", "one_permanent", True)
    assert (plain.choice("reward"), plain.choice("slots"), plain.host.frozen) == ("shaped", "one_seed", False)
    for chosen in (["reward_mode=sparse", "task=digits_drift"], ["task=digits_drift", "reward=sparse", "slots=one_seed"]):
        assert check(chosen).choice("reward") == "sparse"
    assert check_over(plain, ["task=digits_drift"]).reward == plain.reward, "an evaluation pays as the run did"


def test_a_task_brings_its_optimiser_unless_another_is_chosen() -> None:
    tasks = ("digits", "digits_trials", "python_text", "python_text_drift", "tinystories")
    found = [check([f"task={name}"]).choice("optimiser") for name in tasks]
    assert found == ["sgd", "sgd_fast_seeds", "adamw_text", "adamw_text", "adamw_warmup"]
    assert check(["task=digits_trials"]).optimiser.seeds.learning_rate == 0.1
    chosen = ["optimiser=adamw", "optimiser.learning_rate=2e-3"]
    assert (
        check(["task=python_text", *chosen]).optimiser
        == check([*chosen, "task=digits"]).optimiser
        == AdamWConfig(learning_rate=2e-3)
    )
    assert check_over(check([]), ["task=python_text"]).optimiser == check(["task=python_text"]).optimiser
    jobs = check_sweep(["task=digits_trials", "optimiser=sgd,nesterov,adamw"])
    assert [job.optimiser for job in jobs] == [SGDConfig(), NesterovConfig(), AdamWConfig()]


def test_a_sweep_over_tasks_gives_each_its_host() -> None:
    jobs = check_sweep(["task=digits,python_text,digits_mlp"])
    assert [type(job.host) for job in jobs] == [CNNConfig, TransformerConfig, MLPConfig]
    jobs = check_sweep(["host=cnn,mlp"])
    assert [(type(job.task), type(job.host)) for job in jobs] == [(DigitsConfig, CNNConfig), (DigitsConfig, MLPConfig)]
