"""Search per host: what a halving keeps, what a search counts, and what Optuna proposes."""

# N hosts, T host epochs, J trainings of each host, S slots

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.agent.best_of_random import Times, draw_schedule, planted
from esper.agent.scripted.schedule import ActionConfig, ActionLists
from esper.cli.overrides import check
from esper.config import ConfigError
from esper.env.actions import Op
from esper.env.growth_env import GrowthEnv
from esper.evaluate import main, parse
from esper.evaluation.held_out import Evaluation
from esper.evaluation.host_tpe import STARTUP, Proposals
from esper.evaluation.outcomes import HostOutcomes
from esper.evaluation.per_host import HostSearch, Training, affordable, best_of, halving, names
from esper.lifecycle.roles import Roles
from esper.seeding import stream
from esper.text import si
from esper.training.trainer import Trainer
from tests.agent.staged import SPEC, see

HOSTS, STEPS = 3, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    small = ["hosts=2", f"steps={STEPS}", "updates=1", "task.epoch_samples=128", "task.valid_samples=100"]
    Trainer(check([*small, "telemetry=quiet", "agent=wait", "slots.max_seeds=2"]), folder).run()
    return folder


@pytest.fixture(scope="module")
def evaluation(folder: Path) -> Evaluation:
    return Evaluation.load(str(folder), hosts=HOSTS)


@pytest.fixture(scope="module")
def hosts(evaluation: Evaluation) -> HostSearch:
    return HostSearch(evaluation)


@pytest.fixture(scope="module")
def two_kinds(tmp_path_factory: pytest.TempPathFactory) -> HostSearch:
    """A search with two blueprints, so that every schedule of one seed is soon tried."""
    folder = tmp_path_factory.mktemp("two")
    small = ["hosts=2", f"steps={STEPS}", "updates=1", "task.epoch_samples=128", "task.valid_samples=100"]
    small += ["telemetry=quiet", "agent=wait", "slots.max_seeds=2", "blueprint=[norm,conv_heavy]"]
    Trainer(check(small), folder).run()
    return HostSearch(Evaluation.load(str(folder), hosts=2))


# ---- halving, on curves that nobody trained

curves = st.integers(1, 40).flatmap(
    lambda count: st.tuples(
        st.just(count), st.integers(0, 10**6), st.sampled_from([[2, 5, 10, 20], [5, 10, 20], [20], [1, 3]]), st.integers(1, 3)
    )
)


def made_up(count: int, seed: int, steps: int, hosts: int) -> list[Training]:
    """Return trainings with random scores, of which many are equal, and distinct accuracies."""
    rng = np.random.default_rng(seed)
    found: list[Training] = []
    for number in range(count):
        score, spent = rng.integers(4, size=(steps, hosts)).astype(float), rng.random((2, steps, hosts)).cumsum(axis=1)
        values = {"number": np.full(hosts, number), "training_flops": spent[0, -1], "measuring_flops": spent[1, -1]}
        found.append(
            Training(
                outcomes=HostOutcomes(values=values, instance=["o"] * hosts, kept=[[]] * hosts),
                score_TN=score,
                accuracy_TN=rng.random((steps, hosts)),
                training_TN=spent[0],
                measuring_TN=spent[1],
            )
        )
    return found


@settings(max_examples=60, deadline=None)
@given(curves)
def test_a_halving_keeps_the_stronger_half_at_every_rung(drawn: tuple[int, int, list[int], int]) -> None:
    count, seed, rungs, num_hosts = drawn
    trainings = made_up(count, seed, rungs[-1], num_hosts)
    epochs_JN = halving(trainings, rungs)
    left = count
    for rung in rungs[:-1]:
        left = max(1, left // 2)
        for host in range(num_hosts):
            strength = [(one.score_TN[rung - 1, host], one.accuracy_TN[rung - 1, host]) for one in trainings]
            stopped = [strength[j] for j in range(count) if epochs_JN[j, host] == rung]
            survived = [strength[j] for j in range(count) if epochs_JN[j, host] > rung]
            assert len(survived) == left
            assert not stopped or max(stopped) <= min(survived)
    best = best_of(trainings, epochs_JN)
    for host in range(num_hosts):
        finished = [j for j in range(count) if epochs_JN[j, host] == rungs[-1]]
        scores = [trainings[j].score_TN[-1, host] for j in finished]
        assert best.values["number"][host] == finished[int(np.argmax(scores))]
        paid = sum(one.training_TN[epochs_JN[j, host] - 1, host] for j, one in enumerate(trainings))
        assert best.values["training_flops"][host] == pytest.approx(paid)


@given(budget=st.floats(20, 400), rungs=st.sampled_from([[2, 5, 10, 20], [10, 20], [20]]))
def test_a_halving_spends_its_budget_and_no_more(budget: float, rungs: list[int]) -> None:
    def spent(count: int) -> int:
        return int(halving(made_up(count, 0, 20, 1), rungs).sum())

    count = affordable(budget, rungs)
    assert spent(count) <= budget < spent(count + 1)


# ---- searches on hosts


def test_one_training_grows_nothing_and_the_best_is_what_its_schedule_grows(evaluation: Evaluation, hosts: HostSearch) -> None:
    wait = evaluation.grow(evaluation.controller("wait"))
    one, three = hosts.run("search_random_1"), hosts.run("search_random_3")
    assert one.lists() == wait.lists()
    tried = hosts.drawn(3)
    best_N = np.argmax([training.score_TN[-1] for training in tried], axis=0)
    assert len({*best_N.tolist()}) > 1, "hosts differ in their best schedule"
    schedules = [hosts._draw(number)[host] for host, number in enumerate(best_N)]
    again = evaluation.grow(ActionLists(schedules, evaluation.env.layout))
    assert three.kept == again.kept
    for name in ("return", "accuracy", "validation", "parameters", "flops"):
        np.testing.assert_allclose(three.values[name], again.values[name], rtol=1e-5)


def test_flops_are_those_of_all_trainings_and_the_choice_is_by_validation(hosts: HostSearch) -> None:
    found = [hosts.run(f"search_random_{count}") for count in (1, 2, 4)]
    each = [training.outcomes.values for training in hosts.drawn(4)]
    for name in ("training_flops", "measuring_flops"):
        sums = np.cumsum([one[name] for one in each], axis=0)
        np.testing.assert_allclose([one.values[name] for one in found], sums[[0, 1, 3]])
    returns = [one.values["return"] for one in found]
    assert np.all(np.diff(returns, axis=0) >= 0)
    assert np.any(np.diff(returns, axis=0) > 0)
    np.testing.assert_array_equal(returns[-1], np.max([one["return"] for one in each], axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["halving", "hyperband"])
def test_a_search_that_stops_trainings_costs_less_than_all_of_them(hosts: HostSearch, method: str) -> None:
    found, epochs_JN = {"halving": hosts.halve, "hyperband": hosts.hyperband}[method](4)
    outcomes = hosts.run(f"search_{method}_4")
    whole_JN = np.stack([one.outcomes.values["training_flops"] for one in found])
    assert len(found) > 4, "it tries more schedules than it could train to the end"
    assert np.all(outcomes.values["training_flops"] < whole_JN.sum(axis=0))
    assert np.all(outcomes.values["training_flops"] <= 4 * whole_JN.max(axis=0))
    assert np.all(epochs_JN.sum(axis=0) <= 4 * STEPS)


@pytest.mark.parametrize("by", ["return", "validation"])
def test_the_curves_of_a_training_end_with_its_outcomes(evaluation: Evaluation, by: str) -> None:
    unkept = [[ActionConfig(op="germinate", slot=0, blueprint="conv_heavy")]] * HOSTS
    training = HostSearch(evaluation, by=by).train(unkept)
    np.testing.assert_array_equal(training.training_TN[-1], training.outcomes.values["training_flops"])
    np.testing.assert_array_equal(training.score_TN[-1], training.outcomes.values[by])
    assert np.any(training.score_TN[-1] != training.accuracy_TN[-1]), "the seed is not kept"
    assert np.all(np.diff(training.training_TN, axis=0) > 0)
    assert len(training.training_TN) == STEPS


def test_enumeration_tries_every_single_seed_and_nothing(two_kinds: HostSearch) -> None:
    found, _ = two_kinds.enumerate(0)
    spec = two_kinds.env.layout
    assert len(found) == 1 + spec.num_slots * len(spec.blueprint_names)
    grown = [tuple((seed["slot"], seed["blueprint"]) for seed in training.outcomes.kept[0]) for training in found]
    assert len({*grown}) == len(found)
    assert max(map(len, grown)) == 1


def test_a_static_net_has_its_seed_from_initialisation(folder: Path) -> None:
    overrides = ["slots.isolation=until_kept", "slots.fossils=frozen", "slots.auto_advance=[]", "gates.min_training=9"]
    evaluation = Evaluation.load(str(folder), hosts=HOSTS, overrides=overrides)
    hosts, env = HostSearch(evaluation), evaluation.static_env()
    assert isinstance(env, GrowthEnv)
    roles = env.pool.arrange
    seen: list[Roles] = []
    env.pool.arrange = lambda role: (seen.append(role), roles(role))[1]
    training = hosts.train([planted(1, "conv_heavy", 0)] * HOSTS, env)
    assert len(seen) == STEPS
    for role in seen:
        for name, value in {"open": True, "learns": True, "behind": False, "alpha": 1.0}.items():
            assert np.all(getattr(role, name)[:, 1] == value), f"{name}, from the first epoch to the last"
    costs = env.costs.flops.forward
    whole = 3 * 128 * (costs.host + costs.seed_KS[env.layout.blueprint_names.index("conv_heavy"), 1])
    np.testing.assert_array_equal(training.training_TN[:, 0], whole * np.arange(1, STEPS + 1))
    assert [len(kept) for kept in training.outcomes.kept] == [1] * HOSTS
    incubated = hosts.train([planted(1, "conv_heavy", 0)] * HOSTS)
    assert training.outcomes.instance == incubated.outcomes.instance
    env.close()


@pytest.mark.slow
def test_static_nets_are_searched_like_schedules(two_kinds: HostSearch) -> None:
    static, incubated = two_kinds.static_nets(0)[0], two_kinds.enumerate(0)[0]
    assert static[0].outcomes.lists() == incubated[0].outcomes.lists(), "nothing is planted"
    for one, other in zip(static[1:], incubated[1:], strict=True):
        assert one.outcomes.kept == other.outcomes.kept
        assert np.all(one.training_TN[0] < other.training_TN[0]), "incubation has a pass of its own"


def test_schedules_of_a_host_do_not_depend_on_the_number_of_hosts(folder: Path, hosts: HostSearch) -> None:
    alone = HostSearch(Evaluation.load(str(folder), hosts=2))
    assert [alone._draw(number) for number in range(4)] == [hosts._draw(number)[:2] for number in range(4)]
    assert hosts._draw(1)[0] != hosts._draw(1)[1]
    assert max(len(schedule) for number in range(9) for schedule in hosts._draw(number)) == 2 * 2, "slots.max_seeds"
    other = HostSearch(Evaluation.load(str(folder), hosts=2, episode=1))
    assert other._draw(1) != alone._draw(1)


# ---- proposals of Optuna


def proposals(seeds: list[int]) -> Proposals:
    first = see(0, legal={Op.GERMINATE: [0, 1, 2]})
    places = [(slot, kind) for slot in range(3) for kind in SPEC.blueprint_names]
    return Proposals(SPEC, first, places, 2, Times.early, seeds)


def test_known_schedules_return_as_they_are_and_proposals_learn_from_scores() -> None:
    first = see(0, legal={Op.GERMINATE: [0, 1, 2]})

    def score(schedule: list[ActionConfig]) -> float:
        return float(any(action.slot == 1 and action.at < 4 for action in schedule)) - len(schedule) / 9

    def random(number: int) -> list[ActionConfig]:
        return draw_schedule(stream(0, "known", number), first, SPEC, most=2, latest=9, times=Times.early)

    def proposed(study: Proposals, count: int) -> list[list[list[ActionConfig]]]:
        found: list[list[list[ActionConfig]]] = []
        for number in range(STARTUP + count):
            known = [random(number), [], random(number)] if number < STARTUP else None
            schedules = study.ask(known)
            assert known in (None, schedules)
            study.tell(np.array([score(one) for one in schedules]))
            found.append(schedules)
        return found[STARTUP:]

    found = proposed(proposals([3, 4, 5]), 40)
    chance = np.mean([score(random(number)) for number in range(300)])
    last = np.mean([score(one) for schedules in found[-10:] for one in schedules])
    assert last > chance + 0.25
    assert proposed(proposals([3, 4, 5]), 5) == found[:5]
    assert [one[2] for one in found] != [one[0] for one in found], "the study of each host has its own seed"


def test_a_search_by_proposals_continues_that_of_random_schedules(hosts: HostSearch) -> None:
    few, more = hosts.run("search_tpe_2"), hosts.run(f"search_tpe_{STARTUP + 1}")
    assert few.lists() == hosts.run("search_random_2").lists()
    assert np.all(more.values["return"] >= hosts.run(f"search_random_{STARTUP}").values["return"])
    assert len(hosts._proposed) == STARTUP + 1


# ---- commands


def test_the_command_prints_searches_and_writes_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([f"checkpoint={folder}", "hosts=2", "controllers=[wait]", "search_per_host=[random,halving]", "trainings=[1,2]"])
    shown = capsys.readouterr().out
    assert "Search per host by return" in shown
    assert max(map(len, shown.splitlines()[:-3])) <= 80
    kept = json.loads((folder / "evaluation_000001_2_hosts_episode0.json").read_text())
    assert [row["controller"] for row in kept["searches"]] == ["policy", *names(["random", "halving"], [1, 2])]
    policy, first, second = kept["searches"][:3]
    assert first["return_over_policy"]["mean"] == 0, "both wait"
    assert f"{si(second['total_flops'])} ({si(second['training_flops'])})" in shown
    assert second["total_flops"] > 2 * policy["total_flops"] > 0
    assert len(kept["hosts"]["search_halving_2"]["kept"]) == 2


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("search_per_host=[randm]", "search_per_host=randm is not known: .*did you mean random"),
        ("trainings=[0]", "trainings must be numbers of at least 1"),
        ("trainings=[]", "trainings must be numbers of at least 1"),
        ("search_by=accuracy", "search_by=accuracy is not known: choose from return, validation"),
        ("search_times=late", "search_times.*late"),
    ],
)
def test_invalid_arguments_are_one_sentence(argument: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        parse(["checkpoint=x", argument])
    assert "\n" not in str(caught.value)


def test_without_optuna_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.evaluation.per_host.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"search_per_host=tpe needs optuna: pip install"):
        parse(["checkpoint=x", "search_per_host=[tpe]"])


def test_hosts_that_do_not_train_cannot_be_searched(tmp_path: Path) -> None:
    Trainer(check(["env=sandbox", "agent=wait", "hosts=2", "steps=5", "updates=1", "telemetry=quiet"]), tmp_path).run()
    with pytest.raises(ConfigError, match="search_per_host needs hosts that train, and those of env=sandbox do not"):
        HostSearch(Evaluation.load(str(tmp_path), hosts=2))


def test_an_environment_without_hosts_is_evaluated_with_the_baselines_that_fit(tmp_path: Path) -> None:
    Trainer(check(["env=sandbox", "steps=6", "hosts=4", "updates=1", "telemetry=quiet"]), tmp_path).run()
    evaluation = Evaluation.load(str(tmp_path), hosts=2)
    assert set(evaluation.run()) == {"policy", "policy_greedy", "random", "periodic", "wait"}
    with pytest.raises(ConfigError, match="controllers=heuristic reads measurements of hosts"):
        evaluation.run(["heuristic"])
