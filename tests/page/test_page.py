"""The page of a run: what it says, and what a browser shows when a person slides, sorts and points."""

import json
import math
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from esper.cli.overrides import check
from esper.cli.quoting import typed_as
from esper.evaluation.bundle import save_policy
from esper.evaluation.held_out import ORACLE
from esper.files import FileError
from esper.notices import UserNotice
from esper.page import contents
from esper.page import page as module
from esper.page.costs import costs_of
from esper.page.evaluations import evaluations, largest, richest
from esper.page.packing import embedded, packed, selection
from esper.page.page import page_at_the_end, shown_hosts, write_page
from esper.pool.cluster import ClusterError
from esper.report import main
from esper.task.data import TaskError
from esper.telemetry.pictures import topology
from esper.telemetry.traces import read_trace, trace_of_evaluation, write_trace
from esper.training.run_folder import PAGE, only_writer
from esper.training.trainer import Trainer
from tests.forked import run_forked
from tests.page.tables import report, table

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
OVERRIDES = [
    "hosts=4",
    "task.epoch_samples=128",
    "task.valid_samples=64",
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


def page_of(folder: Path, hosts: int | None = None) -> str:
    """Write the page of a run, and return it."""
    write_page(folder, hosts=hosts, log=lambda line: None)
    return (folder / PAGE).read_text()


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
    main([str(folder)])  # grows the hosts of the run, which were grown already
    place = f"page: {folder / 'run.html'}\n"
    assert capsys.readouterr().out == f"2 updates, finished; evaluated: the policy after update 2\n{place}"
    for arguments, message in (
        ([str(tmp_path)], "holds no run"),
        ([], "no folder is given"),
        ([str(folder), "hosts=1"], "hosts must be at least 2, or 0 for none"),
        ([str(folder), "host=3"], "host"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err


def test_a_saved_policy_has_a_page(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy"
    save_policy(folder, policy)
    main([str(policy), "hosts=2"])
    assert capsys.readouterr().out.endswith(f"2 updates; evaluated: the policy after update 2\npage: {policy / 'run.html'}\n")
    text = (policy / "run.html").read_text()
    assert "on 2 held-out hosts" in text
    assert "This folder has no records of the training." in text
    assert not {"<h2>Learning curves</h2>", "<h2>Costs</h2>"} & {*re.findall("<h2>.*?</h2>", text)}


def test_the_page_shows_the_hosts_that_were_asked_for(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "a run"
    shutil.copytree(folder, copy)

    def page(**asked: int) -> str:
        return page_of(copy, **asked)

    for name in ("policy", "policy_greedy", "wait"):
        trace = trace_of_evaluation(copy, 2, 4, name)
        few = {column: values[: 2 * 8] for column, values in read_trace(trace).items()}
        write_trace(trace_of_evaluation(copy, 2, 2, name), few)
    shutil.copy(trace_of_evaluation(copy, 2, 4, "policy"), trace_of_evaluation(copy, 2, 6, "policy"))
    assert "on 2 held-out hosts (mean" in page(hosts=2)
    whole = page()
    assert "on 4 held-out hosts (mean" in whole, "which are those of the run"
    assert "on 4 held-out hosts (mean" in page(hosts=0), "6 hosts lack the trace of never growing"
    assert f"python -m esper.evaluate checkpoint='{copy}' schedules=true" in unescape(whole)
    shutil.rmtree(copy / "trace")
    assert f"<code>python -m esper.report '{copy}'</code> grows them" in unescape(page(hosts=0))


def test_the_end_of_a_run_announces_only_what_it_grows(folder: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    page_at_the_end(folder)
    assert capsys.readouterr().out == f"page: {folder / 'run.html'}\n"
    copy = tmp_path / "a run"
    shutil.copytree(folder, copy)
    trace_of_evaluation(copy, 2, 4, "wait").unlink()
    monkeypatch.setattr(module, "write_page", Mock(side_effect=FileError("a file is damaged")))
    with pytest.warns(UserNotice, match=re.escape(f"a file is damaged; python -m esper.report '{copy}' tries again")):
        page_at_the_end(copy)
    assert capsys.readouterr().out.startswith("growing 4 held-out hosts once for its page, about ")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (TaskError("host 3 diverged"), "host 3 diverged"),
        (ClusterError("a worker is lost"), "a worker is lost"),
        (MemoryError(), "out of memory on the CPU"),
    ],
    ids=repr,
)
def test_held_out_hosts_that_cannot_be_grown_do_not_fail_a_finished_run(error, why, folder, monkeypatch) -> None:
    monkeypatch.setattr(module, "trace_held_out", Mock(side_effect=error))
    with pytest.warns(UserNotice, match=rf"run\.html was not written: {why}; python -m esper\.report .* tries again"):
        page_at_the_end(folder)
    monkeypatch.setattr(module, "trace_held_out", Mock(side_effect=KeyError("a bug")))
    with pytest.raises(KeyError):
        page_at_the_end(folder)


def test_every_worker_has_a_host_on_the_page() -> None:
    config = check(["hosts=64"])
    assert shown_hosts(config) == 24
    config.cluster = Mock(num_workers=32)
    assert shown_hosts(config) == 32


def test_a_run_without_traces_or_hosts_has_a_page(tmp_path: Path) -> None:
    overrides = ["env=sandbox", "telemetry=quiet", "updates=2", "hosts=4", "steps=8", "telemetry.trace=true"]
    Trainer(check(overrides), tmp_path).run()
    page = page_of(tmp_path, hosts=4)
    assert "on 4 held-out hosts" in page
    assert "<title>ppo on sandbox</title>" in page
    assert "x 8 epochs, seed 0" in page, "a reward is not used"
    assert not re.findall("Colour is the stage|Terms in this|Counterfactuals of|growth potential and", page)
    shutil.rmtree(tmp_path / "trace")
    (record,) = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps([record | {"mistakes": ["two images are equal"]}]))
    page = page_of(tmp_path, hosts=0)
    assert "No held-out hosts were grown yet" in page
    assert "Data: two images are equal." in page


def test_training_ends_with_a_page_whose_hosts_report_shows_again(tmp_path: Path, capsys) -> None:
    overrides = [*OVERRIDES, "telemetry.page_hosts=3", f"hydra.run.dir={tmp_path}", "updates=1"]
    done = run_forked("esper.train", *overrides, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"page: {tmp_path / 'run.html'}"
    assert "on 3 held-out hosts" in (tmp_path / "run.html").read_text()
    main([str(tmp_path)])
    assert "held-out hosts" not in capsys.readouterr().out


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed to open the page in")
def test_a_browser_slides_sorts_points_and_chooses(folder: Path, tmp_path: Path) -> None:
    script = """
    addEventListener("error", (event) => { document.title = "error " + event.message; });
    setTimeout(() => {
      const seen = {}, range = document.getElementById("trace"), sort = document.getElementById("sort");
      const lanes = () => [...document.querySelectorAll(".lanes")];
      seen.ticks = [...document.querySelectorAll(".ticks button")].map((one) => one.textContent);
      seen.legend = [...document.querySelectorAll("#legend li")].map((one) => one.textContent);
      seen.scatter = document.getElementById("scatter").textContent;
      seen.letters = ["x", "conv", "conv_light"].map(letters);
      seen.marks = document.querySelectorAll("#scatter :is(.dot, .removed)").length;
      seen.label = document.getElementById("label").textContent; seen.hosts = lanes().length;
      trace = { ...trace, slots: [] }; drawHosts(); seen.bare = document.querySelectorAll(".hosts svg:not(:has(.spark))").length;
      const all = (name) => ({ names: [name], at: [0, 0] });
      trace = { steps: 2, columns: { op: all("germinate"), slot: all("s0"), refused: [0, 1], "s0.contribution": [1, 2] } };
      seen.last = lastContribution({ host: 0, epoch: 0, slot: "s0" });
      document.querySelector(".ticks button").click();
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
    assert seen["bare"] == 0, "without slots there are neither lanes nor networks"
    assert seen["last"] == 2, "a refused operation ends no seed"
    assert seen["letters"] == ["X", "CO", "CL"]
    assert seen["ticks"] == ["update 1", "2", "held-out, most probable", "held-out, sampled"]
    tables = [read_trace(path) for path in (folder / "trace").iterdir()]
    stages = {stage for one in tables for name, values in one.items() if ".stage" in name for stage in values}
    assert {*seen["legend"]} == stages - {"dormant", None}, "the legend has the stages that occur"
    trace = read_trace(trace_of_evaluation(folder, 2, 4, "policy"))
    planted = [row for row, op in enumerate(trace["op"]) if op == "germinate" and not trace["refused"][row]]
    later = [trace[f"{trace['slot'][row]}.contribution"][row : row - row % 8 + 8] for row in planted]
    measured = sum(any(value is not None for value in values) for values in later)
    assert seen["marks"] == measured > 1, "each seed with a measured contribution has a mark, if there are two or more"
    assert f"{measured} seeds" in seen["scatter"]
    assert "ank correlation" in seen["scatter"]
    assert seen["first"] == "update 1, training hosts"
    assert seen["order"] == np.argsort(np.array(trace["return"][7::8], dtype=float)).tolist()
    assert f"host {seen['order'][0]}, epoch 1operation" in seen["tip"], "the first arrow shows the first epoch"
    assert "operation" in seen["live"]
    assert seen["which"] == f"host {seen['order'][1]}"
    assert seen["bars"] >= 2


def test_every_column_on_the_page_is_drawn(folder: Path) -> None:
    script = (Path(module.__file__).parent / "run.js").read_text()
    names = {
        name.rpartition(".")[2] for path in (folder / "trace").iterdir() for name in packed("x", read_trace(path))["columns"]
    }
    used = {re.sub("^(reward|potential)_.*", r"\1_", name) for name in names}
    assert len(used) > 10
    assert not [name for name in used if not re.search(rf'["`.]{name}["`]', script)]


def test_packing_keeps_values_and_shrinks_what_does_not_change() -> None:
    trace = table([1, 2], "germinate") | {"s0.potential_conv": [5.0, 5.0, 6.0, 7.0]}
    found = packed("x", trace)
    assert found["columns"]["s0.potential_conv"] == [5, None, 6, 7]
    assert found["columns"]["op"] == {"names": ["germinate", "wait"], "at": [0, 1, 0, 1]}
    assert embedded([found]) == embedded([found])


def test_a_fossil_that_a_rollback_took_back_is_not_kept() -> None:
    trace = table([1, 2]) | {"s0.stage": ["fossilized"] * 4, "s0.blueprint": ["conv"] * 4}
    assert packed("x", trace)["kept"] == {"s0": ["conv", "conv"]}, "a trace of an earlier version"
    known = trace | {"s0.kept": [None, None, None, "norm"]}
    assert packed("x", known)["kept"] == {"s0": [None, "norm"]}
    assert packed("x", trace | {"s0.kept": [None] * 4})["kept"] == {"s0": [None, None]}
    bare = topology(trace | {"s0.stage": ["pruned"] * 4})
    assert not np.array_equal(topology(known), bare)
    assert np.array_equal(topology(trace | {"s0.kept": [None] * 4}), bare)


@pytest.mark.parametrize("text", ['{"host": {', "[1]"])
def test_damaged_costs_are_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text(text)
    with pytest.raises(FileError, match=r"costs\.json is damaged: move it away"):
        costs_of(tmp_path)


def test_a_damaged_record_of_anomalies_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    with (copy / "events.jsonl").open("a") as file:
        file.write('{"update": 2, "event": "anom}\n')
    with pytest.raises(FileError, match=r"line \d+ of .*events\.jsonl is not a record"):
        contents.gather(copy)


def test_a_gradient_that_is_not_finite_is_missing_on_the_page() -> None:
    found = packed("x", table([1, 2]) | {"host_gradient": [0.5, math.inf, math.nan, None]})
    assert found["columns"]["host_gradient"] == [0.5, None, None, None]
    assert embedded([found])


def test_the_state_of_a_run_follows_its_record_and_its_lock(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "a run"
    shutil.copytree(folder, copy)
    records = json.loads((copy / "run.json").read_text())

    def page(*statuses: str) -> str:
        (copy / "run.json").write_text(json.dumps([records[0] | {"status": status} for status in statuses]))
        return page_of(copy, hosts=0)

    killed = page("running")
    assert contents.gather(copy).status.line == "2 updates, killed after update 2; evaluated: the policy after update 2"
    assert "The policy after update 2 grew the held-out hosts of this page." in killed
    assert f"<pre>python -m esper.train {typed_as('resume', copy)}</pre>" in unescape(killed)
    assert "still running" not in killed
    with only_writer(copy):
        running = page("running")
        assert contents.gather(copy).status.line.startswith("2 updates, still running at 20")
    assert "still running at 20" in running
    assert "This command continues it" not in running
    assert "stopped after update 2" in page("stopped")
    finished = page("finished")
    assert "killed" not in finished.split("<script")[0]
    assert ", killed after update 2; esper" in page("running", "finished"), "a resume shows that the first command is gone"
    assert "grew the held-out hosts of this page" not in finished


def test_the_newest_evaluation_leads_if_it_has_more_hosts(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)

    def page(name: str, found: dict) -> str:
        (copy / f"{name}.json").write_text(json.dumps(found))
        return page_of(copy, hosts=0)

    older = page("evaluation_000001_99_hosts_episode0", report(99, policy=50, heuristic=40, wait=30))
    assert "on 4 held-out hosts (mean" in older, "an evaluation of an earlier policy does not lead"
    assert "Its best baseline" not in older
    few = page("evaluation_000002_3_hosts_episode0", report(3, policy=50, heuristic=40, wait=30))
    assert "on 4 held-out hosts (mean" in few
    assert "<h2>Comparison with baselines</h2>" in few
    assert '<a href="evaluation_000002_3_hosts_episode0.json">' in few
    assert ">figure</a>" not in few
    (copy / "evaluation_000002_9_hosts_episode0.svg").write_text("<svg/>")
    many = page("evaluation_000002_9_hosts_episode0", report(9, policy=50, heuristic=40, wait=30))
    assert "20.0 ± 0.0 points more return on 9 held-out hosts (mean" in many
    assert "Its best baseline in esper.evaluate is heuristic" in many
    assert "On the 4 held-out hosts shown below, it" in many
    assert '<a href="evaluation_000002_9_hosts_episode0.svg">figure</a>' in many
    page("evaluation_000003_5_hosts_other", report(5, policy=50, wait=30) | {"transfer": {"slug": "other"}})
    found = evaluations(copy)
    assert {one.file for one in found[-2:]} == {f"evaluation_000002_{hosts}_hosts_episode0.json" for hosts in (3, 9)}
    assert richest(found, 3) == largest(found, 3), "transfers are another question"
    lone = page("evaluation_000002_99_hosts_episode0", report(99, heuristic=40, random=35))
    assert "on 9 held-out hosts (mean" in lone, "one without the policy leads nowhere"


def test_a_trace_of_many_training_hosts_shows_the_first() -> None:
    label, few = contents._training(3, table([1.0, 2.0]))
    assert (label, len(few["op"])) == ("update 3, training hosts", 4)
    label, many = contents._training(3, table([1.0] * 100))
    assert (label, len(many["op"])) == ("update 3, the first 64 of 100 training hosts", 128)


def test_a_smaller_evaluation_hides_no_controllers(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    rows = [
        {"controller": name, "training_flops": flops, "policy_flops": 3e6} for name, flops in (("policy", 2e9), ("wait", 1e9))
    ]
    rich = report(5, policy=50, heuristic=40, wait=30) | {"rows": rows}
    rich["hosts"][ORACLE] = report(5, oracle=52)["hosts"]["oracle"]
    poor = report(9, policy=50, wait=30)
    page = ""
    for hosts, found in ((5, rich), (9, poor)):
        (copy / f"evaluation_000002_{hosts}_hosts_episode0.json").write_text(json.dumps(found))
        page = page_of(copy, hosts=0)
    assert "on 9 held-out hosts (mean" in page, "the headline is from most hosts"
    assert "Its best baseline in esper.evaluate is heuristic: the policy shows 10.0" in page, "an oracle is no baseline"
    oracle = "the best schedule of one seed, planted in the first epoch, for each kind of host"
    assert f"{oracle}: the policy returns 2.0 ± 0.0 points less" in page
    assert 'Other evaluations of this run: <a href="evaluation_000002_9_hosts_episode0.json">' in page
    assert "2e+09 FLOPs of training, 1e+09 if it never grows; 3e+06 for the policy&#39;s decisions" in page
    assert "How much more was possible?" not in page
    (copy / "evaluation_000002_5_hosts_episode0.json").unlink()
    assert "How much more was possible?" in page_of(copy, hosts=0)


def test_traces_of_a_lost_checkpoint_are_not_shown(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, copy := tmp_path / "run")
    (copy / "checkpoints" / "checkpoint_000002.pt").write_bytes(b"damaged")
    with pytest.warns(UserNotice, match="trying the previous"):
        assert write_page(copy, hosts=0).status.line == "1 of 2 updates, stopped after update 1; no held-out hosts"
