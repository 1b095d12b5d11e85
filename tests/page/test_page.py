"""The page of a run: what it says, and what a browser shows when a person slides, sorts and points."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from esper.cli.overrides import check
from esper.page.findings import failures, gain, habits, kinds, plantings, rival_sentence, verdict
from esper.page.packing import embedded, packed, selection
from esper.page.page import write_page
from esper.report import main
from esper.telemetry.traces import read_trace, trace_of_evaluation
from esper.training.trainer import Trainer

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
OVERRIDES = [
    "hosts=4",
    "steps=8",
    "updates=2",
    "telemetry=quiet",
    "telemetry.trace=true",
    "agent.minibatches=2",
    "agent.hidden=8",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    Trainer(check(OVERRIDES), folder).run()
    write_page(folder, hosts=4, log=lambda line: None)
    return folder


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


def test_the_verdict_follows_the_interval() -> None:
    never = table([10, 20, 30, 40])
    name = {"name": "it", "score": "accuracy"}
    assert verdict(table([12, 22, 33, 42]), never, **name).startswith(
        "Compared with never growing, it has 2.2 ± 0.8 pp more test accuracy and 2.2 ± 0.8 points more return on 4 held-out hosts"
    )
    worse = {"test_accuracy": table([8, 18, 27, 38])["test_accuracy"]}
    assert "it has 2.2 ± 0.8 pp less test accuracy and no clear difference in return (0.0 ± 13.1 points)" in verdict(
        table([0, 30, 31, 39]) | worse, never, **name
    )
    found = gain(table([11, 21, 31, 41]), never, "return")
    assert found is not None
    assert found.mean == 1


def test_hosts_that_lose_are_named_worst_first() -> None:
    never = table([10, 20, 30])
    assert failures(table([9, 25, 20]), never).startswith(
        "2 of 3 hosts return less than if they never grew; the worst: host 2 (-10.0), h"
    )
    assert failures(table([10, 20, 30], "prune"), never) == (
        "None of 3 hosts returns less than if it never grew. Lowest test accuracy, and the difference to never growing: "
        "host 0 (10.0 %, +0.0 pp), host 1 (20.0 %, +0.0 pp), host 2 (30.0 %, +0.0 pp). 3 seeds pruned, in 3 hosts. No rollbacks."
    )


def test_kinds_are_compared_with_never_growing() -> None:
    kind = {"kind": ["a", "a", "b", "b", "b", "b"]}
    never = table([10, 20, 30]) | kind
    assert kinds(table([12, 20, 31], "germinate") | kind, never) == [
        ("a", "1", "+2.0", "+2.0", "conv in s0 (100% of 1 seed)"),
        ("b", "2", "+0.5 ± 6.4", "+0.5 ± 6.4", "conv in s0 (100% of 2 seeds)"),
    ]
    assert [row[-1] for row in kinds(table([12, 20, 31]) | kind, never)] == ["nothing", "nothing"]
    assert kinds(table([12, 20, 31]), never) == []


def test_the_best_rival_is_compared_by_a_paired_interval() -> None:
    def report(own: list[float], other: list[float]) -> dict:
        return {"hosts": {name: {"return": values} for name, values in {"policy": own, "rule": other, "wait": [0, 0, 0]}.items()}}

    assert rival_sentence(report([11, 12, 13.5], [10, 11, 12])) == (
        "its best rival is rule: the policy returns 1.2 ± 0.7 points more, paired on the same 3 hosts"
    )
    assert "returns 1.0 ± 0.0 points less" in rival_sentence(report([1, 2, 3], [2, 3, 4]))
    assert "no clear difference in return (0.0 ± " in rival_sentence(report([1, 2, 3], [2, 2, 2]))
    assert rival_sentence(report([1, 2, 3], [-1, -1, -1])) == ""


def test_plantings_are_counted_with_their_last_contribution() -> None:
    planted = plantings(table([1, 2], "germinate"))
    assert [(one["host"], one["epoch"], one["contribution"]) for one in planted] == [(0, 1, 3.0), (1, 1, 3.0)]
    assert habits(table([1, 2], "germinate"))[0].startswith(
        "It plants in 2 of 2 hosts, 1.0 seeds per host, most often conv in s0 (100% of all seeds)"
    )
    assert habits(table([1, 2])) == ["It plants nothing."]


def test_traces_on_the_page_are_chosen_evenly() -> None:
    assert selection([1, 2, 3], 9) == [1, 2, 3]
    assert selection(list(range(101)), 5) == [0, 25, 50, 75, 100]


def test_the_page_is_one_file_without_addresses_and_holds_the_numbers(folder: Path) -> None:
    page = (folder / "run.html").read_text()
    assert len(page) < 1_000_000
    assert not re.findall(r"(?:src|href)=[\"'](?!data:)[^\"'#]", page), "nothing is loaded from elsewhere"
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    for text in ("ppo on digits", "2 updates of 4 hosts x 8 epochs", "4 held-out hosts", "Reward by term", "telemetry.trace"):
        assert text in page, text
    files = sorted(path.name for path in (folder / "trace").iterdir())
    assert files == [
        *(f"held_out_000002_4_hosts_{name}.csv.gz" for name in ("policy", "policy_greedy", "wait")),
        *("update_000001.csv.gz", "update_000002.csv.gz"),
    ]


def test_the_command_writes_pages_and_refuses_what_is_no_run(folder: Path, tmp_path: Path, capsys) -> None:
    main([str(folder), "hosts=0"])
    assert capsys.readouterr().out == f"page: {folder / 'run.html'}\n"
    for arguments, message in (
        ([str(tmp_path)], "holds no run"),
        ([], "no folder is given"),
        ([str(folder), "hosts=1"], "hosts must be at least 2, or 0 for none"),
        ([str(folder), "host=3"], "host"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err


def test_a_run_without_traces_or_hosts_has_a_page(tmp_path: Path) -> None:
    overrides = ["env=sandbox", "telemetry=quiet", "updates=2", "hosts=4", "steps=8", "telemetry.trace=true"]
    Trainer(check(overrides), tmp_path).run()
    page = write_page(tmp_path, hosts=4, log=lambda line: None).read_text()
    assert "on 4 held-out hosts" in page
    shutil.rmtree(tmp_path / "trace")
    assert "No held-out hosts were grown yet" in write_page(tmp_path, hosts=0, log=lambda line: None).read_text()


def test_training_ends_with_a_page(tmp_path: Path) -> None:
    overrides = [*OVERRIDES, "telemetry.page_hosts=3", f"hydra.run.dir={tmp_path}", "updates=1"]
    done = subprocess.run([sys.executable, "-m", "esper.train", *overrides], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"page: {tmp_path / 'run.html'}"
    assert "on 3 held-out hosts" in (tmp_path / "run.html").read_text()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed to open the page in")
def test_a_browser_slides_sorts_points_and_chooses(folder: Path, tmp_path: Path) -> None:
    script = """
    addEventListener("error", (event) => { document.title = "error " + event.message; });
    setTimeout(() => {
      const seen = {}, range = document.getElementById("trace"), sort = document.getElementById("sort");
      const lanes = () => [...document.querySelectorAll(".lanes")];
      seen.label = document.getElementById("label").textContent; seen.hosts = lanes().length;
      range.value = 0; range.dispatchEvent(new Event("input"));
      seen.first = document.getElementById("label").textContent;
      range.value = range.max; range.dispatchEvent(new Event("input"));
      sort.value = "return"; sort.dispatchEvent(new Event("change"));
      seen.order = [...document.querySelectorAll(".hosts tbody tr")].map((row) => Number(row.dataset.host));
      lanes()[0].focus(); lanes()[0].dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
      seen.tip = document.getElementById("tip").textContent; seen.live = document.getElementById("live").textContent;
      document.querySelectorAll(".host")[1].click();
      seen.which = document.getElementById("which").textContent;
      seen.bars = document.querySelectorAll("#counterfactuals rect").length;
      document.body.innerHTML = "<pre id=seen></pre>"; document.getElementById("seen").textContent = JSON.stringify(seen);
    }, 1500);
    """
    page = (folder / "run.html").read_text().replace("</body>", f"<script>{script}</script></body>")
    (tmp_path / "clicked.html").write_text(page)
    assert BROWSER is not None
    command = [BROWSER, *FLAGS.split(), f"--user-data-dir={tmp_path / 'user'}", "--virtual-time-budget=8000", "--dump-dom"]
    done = subprocess.run(
        [*command, f"file://{tmp_path / 'clicked.html'}"], capture_output=True, text=True, timeout=120, check=False
    )
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout)
    assert found, done.stdout[-500:] + done.stderr[-500:]
    seen = json.loads(found[1])
    assert (seen["label"], seen["hosts"]) == ("after update 2, held-out hosts, sampled actions", 4)
    assert seen["first"] == "update 1, training hosts"
    returns = read_trace(trace_of_evaluation(folder, 2, 4, "policy"))["return"][7::8]
    assert seen["order"] == np.argsort(np.array(returns, dtype=float)).tolist()
    assert f"host {seen['order'][0]}, epoch 2" in seen["tip"]
    assert "operation" in seen["live"]
    assert seen["which"] == f"host {seen['order'][1]}"
    assert seen["bars"] >= 2


def test_packing_keeps_values_and_shrinks_what_does_not_change() -> None:
    trace = table([1, 2], "germinate") | {"s0.potential_conv": [5.0, 5.0, 6.0, 7.0]}
    found = packed("x", trace)
    assert found["columns"]["s0.potential_conv"] == [5, None, 6, 7]
    assert found["columns"]["op"] == {"names": ["germinate", "wait"], "at": [0, 1, 0, 1]}
    assert embedded([found]) == embedded([found])
