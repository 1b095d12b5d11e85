"""What the page says of a run, from traces, metrics and evaluations."""

import json
import math
from pathlib import Path

import numpy as np

from esper.page.best import best_update, decline
from esper.page.costs import rows, with_flops
from esper.page.curves import reward_tags
from esper.page.evaluations import controllers, meaning
from esper.page.findings import cards, gain, habits, kind_words, kinds, plantings, slot_words, verdict
from esper.page.lead import Grown, failures, rollbacks, sentences
from esper.page.seeds import log_of
from esper.task.kinds import condensed
from tests.page.tables import report, table


def test_the_verdict_follows_the_interval() -> None:
    never = table([10, 20, 30, 40])
    name = {"name": "it", "score": "accuracy"}
    assert verdict(table([12, 22, 33, 42]), never, **name).startswith(
        "Compared with never growing, it shows 2.2 ± 0.8 pp more test accuracy and 2.2 ± 0.8 points more return on 4 held-out"
    )
    worse = {"test_accuracy": table([8, 18, 27, 38])["test_accuracy"]}
    assert "it shows 2.2 ± 0.8 pp less test accuracy and no clear difference in return (0.0 ± 13.1 points)" in verdict(
        table([0, 30, 31, 39]) | worse, never, **name
    )
    found = gain(table([11, 21, 31, 41]), never, "return")
    assert found is not None
    assert found.mean == 1


def test_the_accuracy_of_every_epoch_leads_where_it_was_measured() -> None:
    """Where the reward pays for it; the network that is kept may be worse."""
    own, never = (
        {**table(ends), "online_accuracy": table(online)["return"]} for ends, online in (([5, 6], [42, 44]), ([9, 9], [40, 42]))
    )
    assert "it shows 2.0 ± 0.0 pp more online accuracy and " in verdict(own, never, name="it", score="accuracy")
    shown = [(card.value, card.label) for card in cards(own, never, score="accuracy", host={}, greedy=never)]
    assert shown[0] == ("+2.0 ± 0.0 pp", "online accuracy beyond never growing")
    assert shown[2] == ("43.0 %", "mean test accuracy over the host epochs; 41.0 % with the most probable actions")
    found = " ".join(failures(grown(own, never)))
    assert "Lowest online accuracy: host 0 with 42.0 % (40.0 % if it never grows)" in found
    assert "loses" not in found
    for name in ("host", "kind"):
        own[name] = never[name] = ["a", "a", "b", "b"]
    assert [row[3] for row in kinds(own, never)] == ["+2.0", "+2.0"]
    assert "test accuracy" in verdict(own, table([9, 9]), name="it", score="accuracy"), "one trace lacks it"


def grown(policy: dict, never: dict, greedy: dict | None = None) -> Grown:
    return Grown(policy=policy, greedy=greedy, never=never)


def test_hosts_that_lose_are_named_worst_first() -> None:
    never = table([10, 20, 30])
    assert failures(grown(table([9, 25, 20]), never))[0].startswith(
        "2 of 3 hosts return less than if they never grew; the worst: host 2 (-10.0), h"
    )
    assert failures(grown(table([9.99, 25, 20]), table([10, 20, 30])))[0].startswith("1 of 3 hosts returns less than if it")
    assert failures(grown(table([9.99, 25, 20]), table([10, 20, 30])))[1] == (
        "1 of 3 hosts loses test accuracy against never growing: host 2 (-10.0 pp)."
    )
    assert " ".join(failures(grown(table([10, 20, 30], "prune"), never))) == (
        "None of 3 hosts returns less than if it never grew. Lowest test accuracy: "
        "host 0 with 10.0 % (10.0 % if it never grows); host 1 with 20.0 % (20.0 % if it never grows); "
        "host 2 with 30.0 % (30.0 % if it never grows). "
        "3 seeds were pruned, in hosts 0, 1 and 2. "
        "No rollbacks on these hosts."
    )


def test_pruned_seeds_are_named_with_the_hosts_that_they_cost() -> None:
    own, never = table([50, 20, 60, 70, 80]), table([10, 10, 10, 10, 10])
    own["op"][2] = "prune"
    text = " ".join(failures(grown(own, never, table([50, 75, 60, 70, 80])), training="; 2 in training"))
    assert "host 1 with 20.0 % (75.0 % with the most probable actions, 10.0 % if it never grows); host 0 with" in text
    assert "1 seed was pruned, in host 1, the host of lowest test accuracy; the most probable actions prune none." in text
    assert text.endswith("No rollbacks on these hosts; 2 in training.")
    chances = own | {"probability": [0.0114] * len(own["op"])}
    text = " ".join(failures(grown(chances, never, table([50, 75, 60, 70, 80]))))
    assert "accuracy; that action had a probability of 1 %; the most probable actions prune none." in text
    chances["op"] = ["prune", "wait", *own["op"][2:]]
    chances["probability"] = [0.3, *chances["probability"][1:]]
    text = " ".join(failures(grown(chances, never, table([50, 75, 60, 70, 80]))))
    assert "; these actions had probabilities of 1 % to 30 %;" in text
    own["op"][6], own["op"][2] = "prune", "wait"
    assert "in host 3. No" in " ".join(failures(grown(own, never))), "a host that does well is not called one of the worst"
    own["op"][4] = "prune"
    assert "in hosts 2 and 3; 2 is among the 3 of lowest test accuracy" in " ".join(failures(grown(own, never)))


def test_rollbacks_in_training_are_told() -> None:
    records = [{"update": 1.0, "governor/rollbacks_decline": 0.0}, {"update": 2.0, "governor/rollbacks_decline": 2.0}]
    assert rollbacks(records) == (
        "; 2 in training, the last in update 2 (decline 2): the governor restored an earlier state of the host"
    )
    assert rollbacks(records[:1]) == ", and none in training"
    assert rollbacks(records[1:]).startswith("; 2 in the written updates of training")
    assert rollbacks([{"update": 1.0}]) == ""


def test_the_lead_compares_actions_and_says_what_growing_costs() -> None:
    ends = {"parameters_kept": [None, 50] * 3, "flops_kept": [None, 300] * 3}
    found = grown(
        table([10, 20, 30], "germinate") | ends, table([1, 2, 3]), table([20, 30, 41]) | {"parameters_kept": [None, 0] * 3}
    )
    lines = sentences(
        found,
        found,
        name="it",
        score="accuracy",
        part="block",
        host={"params": 200, "flops": 100},
        baseline=None,
        oracle="against an oracle: nothing",
    )
    assert lines[3] == "Against an oracle: nothing."
    assert "The most probable actions give 30.3 instead of 20.0 % test accuracy (+10.3 " in lines[1]
    assert (
        lines[2]
        == "It keeps 50 parameters per host, 25 % of the host's 200, and raises the FLOPs per sample from 100 to 300 (3 times)."
    )
    assert lines[4].startswith("It plants in 3 of 3 hosts")
    idle = grown(found.policy, found.never, found.never | {"parameters_kept": [None, 0] * 3})
    text = sentences(idle, None, name="", score="accuracy", part="", host={}, baseline=None, oracle="")[1]
    assert text.endswith("With its most probable actions, the policy keeps no seed, which is the same as never growing.")
    assert sentences(None, None, name="", score="", part="", host={}, baseline=None, oracle="") == []
    shown = cards(found.policy, found.never, score="accuracy", host={"params": 200, "flops": 100}, greedy=found.greedy)
    assert [card.value for card in shown[2:]] == ["20.0 %", "50", "3 x"]
    assert "30.3 % with the most probable actions" in shown[2].label


def test_names_of_slots_and_kinds_are_explained() -> None:
    assert slot_words("r0c1", "block") == [
        "Slot r0c1 (row 0, column 1) is a place for a seed in block 1 of the host. Rows, columns and blocks are counted from 0."
    ]
    assert slot_words("s0", "block") == []
    assert "one letter per layer, in forward order: o for an intact layer" in kind_words("oxx noise=0.2", "layer")
    assert "names what sets these hosts apart" in kind_words("plain", "layer")
    kinds_now = [condensed(kind) for kind in ("ooo", "ooo blur@2-6", "ooo invert@2+1-6 relabel@9", "plain arrive(0,7)@5")]
    assert kinds_now == ["ooo", "ooo, all events pass", "ooo, an event stays", "plain, an event stays"]
    assert kind_words(kinds_now[2], "block").startswith("A kind such as ooo has")
    assert kind_words(kinds_now[3], "block").endswith("Events that pass are undone some epochs later; one that stays is not.")


def test_kinds_are_compared_with_never_growing() -> None:
    kind = {"kind": ["a", "a", "b", "b", "b", "b"]}
    never = table([10, 20, 30]) | kind
    assert kinds(table([12, 20, 31], "germinate") | kind, never) == [
        ("a", "1", "+2.0", "+2.0", "conv in s0 (1 of 1 seed)"),
        ("b", "2", "+0.5 ± 6.4", "+0.5 ± 6.4", "conv in s0 (2 of 2 seeds)"),
    ]
    assert [row[-1] for row in kinds(table([12, 20, 31]) | kind, never)] == ["nothing", "nothing"]
    mixed = table([12, 20, 31], "germinate") | kind
    mixed["slot"] = ["s0", "s0", "s0", "s0", "s1", "s1"]
    assert [row[-1] for row in kinds(mixed, never)] == ["conv in s0 (1 of 1 seed)", "no favourite (2 seeds)"]
    assert kinds(table([12, 20, 31]), never) == []


def test_plantings_are_counted_unless_they_are_refused() -> None:
    trace = table([1, 2], "germinate")
    assert [(one["host"], one["epoch"]) for one in plantings(trace)] == [(0, 1), (1, 1)]
    assert [one["host"] for one in plantings(trace | {"refused": [1.0, 0.0, 0.0, 0.0]})] == [1]
    assert habits(table([1, 2], "germinate"))[0].startswith(
        "It plants in 2 of 2 hosts, 1.0 seeds per host, most often conv in s0 (100 % of all seeds)"
    )
    assert habits(table([1, 2])) == ["It plants nothing."]
    events = {"kind": ["a x@2-4", "a x@2-4", "a x@3-5", "a x@3-5"]}
    assert "kinds of hosts" not in "".join(habits(table([1, 2], "germinate") | events)), "which the table shows as one kind"
    later = table([1, 2], "germinate")
    later["op"][2:], later["slot"][3], later["blueprint"][3] = ["wait", "germinate"], "s0", "conv"
    assert "1 of 2 seeds is planted in the first of 2 epochs." in habits(later), "an epoch is a whole number"


def test_a_most_frequent_choice_takes_five_seeds_and_no_tie() -> None:
    def habits_of(hosts: int, others: int = 0) -> str:
        trace = table([1] * 2 * hosts, "germinate") | {"kind": [*"aabb"] * hosts}
        for other in range(others):
            trace["blueprint"][4 * other] = "norm"
        return "".join(habits(trace))

    assert "kinds of hosts" not in habits_of(4)
    assert "is the same for all kinds of hosts" in habits_of(5)
    assert "kinds of hosts" not in habits_of(6, others=3), "three of each"
    assert "differs between kinds of hosts" in habits_of(6, others=4)


def test_a_policy_that_has_become_worse_is_told_and_the_best_checkpoint_named() -> None:
    def records(returns: list[float]) -> list[dict[str, float]]:
        return [{"update": float(update), "policy/return": value} for update, value in enumerate(returns, 1)]

    best = {"update": 3, "return": 80.0}
    worse = decline(records([50, 69, 70, 80, 71, 69, 60, 60, 61, 59, 60, 60]), best)
    assert (
        "the last 5 recorded updates return 60.0 points on average, 9.8 less (8.3 to 11.2) than updates 2 to 6 without the best, "
        "update 4." in worse
    )
    assert "checkpoint=FOLDER/best (checkpoint_000003.pt) is the policy of that time" in worse
    assert decline(records([50, 69, 70, 80, 71, 69, 70, 70, 71, 69, 70, 70]), best) == ""
    seldom = [one | {"update": 3 * one["update"]} for one in records([50, 69, 70, 80, 71, 69, 60, 60, 61, 59, 60, 60])]
    assert "than updates 6 to 18 without the best, update 12." in decline(seldom, {"update": 11, "return": 80.0})
    assert decline(records([50, 69, 70, 80, 60, 60]), best) == "", "too early to tell"
    assert decline(records([50, 60]), None) == ""
    assert best_update(best) == (
        "The highest return in training is 80.0 points, in update 4, by the policy after 3 updates: checkpoint=FOLDER/best "
        "(checkpoint_000003.pt)."
    )
    assert best_update(None) == ""


def test_flops_count_fossils_and_their_gates(tmp_path: Path) -> None:
    price = {"flops": 10}
    costs = {"host": {"flops": 100}, "seeds": {"conv": {"s0": price}}, "gates": {"s0": {"flops": 1}}}
    trace = table([1, 2], "germinate") | {"s0.blueprint": ["conv"] * 4, "style": ["gated", None, "linear_add", None]}
    trace["s0.stage"] = ["training", "fossilized"] * 2
    assert with_flops(trace, costs)["flops_kept"] == [None, 111, None, 110]
    again = trace | {"op": ["germinate"] * 4, "slot": ["s0"] * 4, "style": ["linear_add", "gated"] * 2, "refused": [0, 1] * 2}
    assert with_flops(again, costs)["flops_kept"] == [None, 110, None, 110], "a refused germination changes no style"
    lost = trace | {"s0.kept": [None, None, None, "conv"], "rolled_back": [None, "nonfinite", None, None]}
    lost["s0.contribution_error"] = [None] * 4
    assert with_flops(lost, costs)["flops_kept"] == [None, 100, None, 110], "a rollback in the last epoch took a fossil"
    assert [seed.fate for seed in log_of(lost, ["conv"]).seeds] == ["rolled_back", "kept"]
    assert with_flops(table([1, 2]), costs)["flops_kept"] == [None, 100, None, 100], "seeds that were not kept do not count"
    records = [
        {"update": 1.0, "host/training_flops": 5.0, "host/measuring_flops": 1.0},
        {"update": 2.0, "host/training_flops": 7.0},
    ]
    (tmp_path / "costs.json").write_text(json.dumps({"host": {"params": 4, "flops": 100}, "seeds": {}, "gates": {}}))
    found = dict(rows(tmp_path, records, [], hosts=10, steps=20, grown_N=np.array([150.0, 250.0])))
    assert found["training FLOPs"].startswith("130 for 20 hosts in 2 updates")
    assert found["grown network"] == "200 FLOPs per sample, 2 times as many; mean over 2 held-out hosts"
    assert dict(rows(tmp_path, records[1:], [], hosts=10, steps=20))["training FLOPs"].startswith("7 per host in the last update")
    assert "one more network" not in found
    evaluated = {"policy": {"training_flops": 3e6, "policy_flops": 20.0}, "wait": {"training_flops": 1e6}}
    unknown = {"policy": {"training_flops": math.nan, "policy_flops": 20.0}, "wait": {"training_flops": math.nan}}
    text = dict(rows(tmp_path, records, [{"cores": 2, "devices": {}}], hosts=10, steps=20, evaluated=unknown))
    assert (text["one more network"], text["devices"]) == ("20 FLOPs for the policy's decisions", "2 cores")
    timed = [one | {"time/host_epochs_per_second": 40.0 * one["update"]} for one in records]
    assert dict(rows(tmp_path, timed, [], hosts=10, steps=20, evaluated=evaluated))["one more network"] == (
        "0.33 s beside others (20 epochs at 60 host epochs/s); 3e+06 FLOPs of training, 1e+06 if it never grows; 20 for the "
        "policy's decisions"
    )


def test_reward_terms_are_ordered_by_their_mean_magnitude() -> None:
    records = [{"reward/rent": -2.0, "reward/governor": 0.0, "reward/never": 0.0}] * 9 + [
        {"reward/rent": -2.0, "reward/governor": -10.0}
    ]
    assert reward_tags(records) == ["reward/rent", "reward/governor"]


def test_the_table_of_controllers_compares_with_the_policy() -> None:
    found = controllers(report(4, policy=50, heuristic=60, wait=40))
    assert [row[0] for row in found] == ["heuristic", "policy", "wait"]
    assert found[0][1:7] == ["60.5", "+10.0 ± 0.0", "60.5", "+10.0 ± 0.0", "50", "2,000"]
    assert found[1][2] == ""
    assert meaning("heuristic") == "takes the first action that applies: prune, fossilize, advance, germinate, wait"
    assert meaning("search_random_4", "validation").endswith("It chooses by the validation accuracy, so compare test accuracies")
    assert meaning("one_seed (conv in r0c0)") == "conv in r0c0"
    assert meaning("best schedule (conv in r0c0)").endswith("planted in the first epoch, and chosen on other hosts: conv in r0c0")
    assert meaning("best static net (conv in r0c0)").endswith("from initialisation, and chosen on other hosts: conv in r0c0")
    assert "the work of 1 full training per host. It chooses by the return" in meaning("search_random_1")
    assert "the work of 2 full trainings per host, of which the best is kept" in meaning("search_tpe_2")
    searched = controllers(report(4, policy=50, search_random_8=90, wait=40))
    assert [row[0] for row in searched] == ["policy", "wait", "search_random_8"], "it trains a host eight times"
    assert searched[2][-1].startswith("a search, not a controller: the work of 8 full trainings per host")
