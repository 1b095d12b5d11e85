"""The wheel works without the repository, and the commands on the pages compose."""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import esper
from esper.lifecycle.stages import Stage
from esper.lifecycle.stages import empty as lifecycle_empty
from tests.reward.reward_steps import signals_of

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

HOW_TO = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "howto").glob("*.md"))


def bash_blocks(page: str) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```$", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, as an installer without wheels does. A copy of the checkout is built, so
    that no build folder is left in it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in ("esper", "conf", "hydra_plugins"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(out.glob("*.whl"))


PAGE = {f"esper/page/run.{kind}" for kind in ("html", "css", "js")}


def test_the_wheel_holds_every_module_and_every_yaml(wheel: Path) -> None:
    held = {name for name in ZipFile(wheel).namelist() if not name.split("/")[0].endswith(".dist-info")}
    modules = {str(path.relative_to(ROOT)) for folder in ("esper", "hydra_plugins") for path in (ROOT / folder).rglob("*.py")}
    choices = {f"esper/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert held == modules | choices | {"esper/py.typed", "esper/lab/report.html", *PAGE}


def test_the_wheel_works_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    target, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    ZipFile(wheel).extractall(target)  # as pip does, which takes seconds
    (installed,) = target.glob("*.dist-info")
    (script,) = metadata.Distribution.at(installed).entry_points.select(group="console_scripts")
    assert {script.name: script.value} == PROJECT["scripts"]
    command = [sys.executable, "-c", f"import sys; from {script.module} import {script.attr}; sys.exit({script.attr}())"]
    env = os.environ | {"PYTHONPATH": str(target)}
    done = subprocess.run(
        [*command, "train", "--cfg", "job", "experiment=healthy", "hosts=8"],
        cwd=elsewhere,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = yaml.safe_load(done.stdout)
    assert (shown["hosts"], shown["task"]["instances"]) == (8, "healthy")
    assert not list(elsewhere.iterdir())
    version = subprocess.run([*command, "--version"], env=env, capture_output=True, text=True, check=True)
    assert version.stdout == f"esper {PROJECT['version']}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["esper.compare", "."], ["esper.train", "-m", "sweep=ab", "arms=reward: shaped,sparse", "blocks=1"]]
)
def test_experiments_say_what_they_need(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.modules |= dict.fromkeys(['pandas', 'matplotlib', 'statsmodels'])"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"esper: .* need pandas.*: install the extra compare, as in pip install -c constraints.txt -e '\.\[compare\]'", last
    )


def test_other_programs_with_hydra_get_nothing_of_esper_but_its_plugins() -> None:
    """Hydra imports the plugins of all installed packages; Esper's groups would merge into the configs of that program."""
    code = (
        "import sys; from hydra.core.plugins import Plugins; from hydra.plugins.sweeper import Sweeper; "
        "found = [one.__name__ for one in Plugins.instance().discover(Sweeper)]; "
        "print(*(name in found for name in ('BlockSweeper', 'TuneSweeper')), *{'esper.config', 'torch'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_every_dependency_is_pinned_within_its_range() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    assert pins["torch"] == "2.13.0"
    assert not [version for version in pins.values() if "+" in version], "a local build exists on one machine only"
    todo = [Requirement(text) for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"])]
    seen, done = set[str](), set[tuple[str, frozenset[str]]]()
    while todo:
        need = todo.pop()
        name = canonicalize_name(need.name)
        if (name, frozenset(need.extras)) in done or name.startswith(("nvidia-", "cuda-", "triton")):  # of torch's GPU builds
            continue
        done.add((name, frozenset(need.extras)))
        seen.add(name)
        if name == canonicalize_name(PROJECT["name"]):  # an extra that contains another
            todo += [Requirement(text) for extra in need.extras for text in PROJECT["optional-dependencies"][extra]]
            continue
        try:
            inner = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # another platform's need, such as the GPU libraries of a GPU build
        assert name in pins, f"{name} is not pinned in constraints.txt"
        assert need.specifier.contains(pins[name]), f"{need} does not allow the pin {pins[name]}"
        extras = need.extras or {""}
        todo += [
            more
            for more in map(Requirement, inner)
            if more.marker is None or any(more.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    if sys.version_info >= (3, 13):
        return  # not all extras exist there
    assert set(pins) <= seen, f"nothing needs {sorted(set(pins) - seen)}"


def test_the_checks_run_the_commands_of_the_readme() -> None:
    lines = [line for block in bash_blocks("README.md") for line in block.splitlines()]
    script = (ROOT / ".ci" / "run").read_text()
    patterns = re.findall(r"^(?:train|tests)=\$\(grep -m1 (['\"])(.*)\1 README\.md\)$", script, flags=re.MULTILINE)
    found = [[line for line in lines if re.search(pattern, line)] for _, pattern in patterns]
    assert [len(matching) for matching in found] == [1, 1], "each of the README's two commands is found once by .ci/run"
    assert found[0][0].endswith("&& .venv/bin/python -m esper.train")
    assert all("-c constraints.txt -e " in matching[0] for matching in found)


@pytest.mark.parametrize("failing", ["", "ruff", "basedpyright"])
def test_a_check_that_fails_stops_no_other(failing: str, tmp_path: Path) -> None:
    text = (ROOT / ".ci" / "run").read_text()
    (say,) = re.findall(r"^say\(\) .*$", text, flags=re.MULTILINE)
    (beside,) = re.findall(r"^beside\(\) \{.*?^\}$", text, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("ruff", "basedpyright"):
        command = tmp_path / ".venv" / "bin" / name
        command.write_text(f"#!/bin/sh\necho {name} $1\nexit {int(name == failing)}\n")
        command.chmod(0o755)
    script = f"set -euo pipefail; work=.\n{say}\n{beside}\nbeside >log & wait $!"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    ran = [line for line in (tmp_path / "log").read_text().splitlines() if not line.startswith("==")]
    assert ran == ["ruff check", "ruff format", "basedpyright --pythonpath"], done.stderr
    assert done.returncode == bool(failing)


@pytest.mark.usefixtures("own_parts")
def test_the_reward_of_the_page_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from esper.cli.overrides import check
    from esper.plugins import load_plugins

    page = (ROOT / "docs" / "extending" / "rewards.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    ((plugin, words),) = re.findall(r"python -m esper.train 'plugins=\[(\w+\.py)\]' (reward=brisk reward.trial=0.5)", page)
    (tmp_path / plugin).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins([plugin])
    assert check(words.split()).reward.trial == 0.5  # pyright: ignore[reportAttributeAccessIssue]
    names = vars(sys.modules[plugin.removesuffix(".py")])
    empty = lifecycle_empty(2, 1)
    planted = replace(empty, stage=np.array([[Stage.DORMANT], [Stage.GERMINATED]], dtype=empty.stage.dtype))
    signals = signals_of(empty, planted, committed_accuracy_N=np.array([50.0, 0.0], np.float32), steps_left=0)
    reward = names["BriskConfig"](trial=2.0).build(gamma=0.9)
    total_N, components = reward(signals)
    assert total_N.tolist() == [50.0, -2.0]
    assert tuple(components) == reward.names == ("on_trial", "terminal")


def test_the_code_of_the_readme_runs() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["net"].stage("1").name == "GERMINATED"
    assert names["env"].observation_space.contains(names["observation"])


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/experiments.md", "docs/tuning.md", *HOW_TO])
def test_commands_on_the_pages_compose(page: str) -> None:
    from esper.cli.command import spelled_out
    from esper.cli.overrides import check
    from tests.composed import check_sweep

    for block in bash_blocks(page):
        for line in block.splitlines():
            needs_files = ("plugins=", "--config-dir", "resume=")  # of the reader
            if line.startswith("python -m esper.train") and not any(word in line for word in ("--help", *needs_files)):
                words = spelled_out(shlex.split(line)[3:])
                sweep = "-m" in words
                assert (check_sweep if sweep else check)([word for word in words if word != "-m"])


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "multirun/README.md"])
def test_files_named_on_the_pages_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:esper|tests|docs|conf)/[\w/.]+|\w+\.(?:py|toml|txt))`", text)
    rooms = [ROOT, ROOT / "esper"]
    named = [name for name in named if name not in ("utils.py",)]  # which is forbidden
    assert not [name for name in named if not any((base / name).exists() for base in rooms)]


@pytest.mark.slow
def test_experiments_run_from_any_folder(tmp_path: Path) -> None:
    """Hydra finds no plugins of an editable install by itself, but where the repository is the current folder."""
    words = ["sweep=ab", "arms=agent: wait,random", "blocks=1", "aa_control=false", "outcome=return", "env=sandbox", "steps=6"]
    words += ["updates=1", "hosts=2", "telemetry=quiet", "hydra.sweep.dir=here"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "esper.train", "-m", *words]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "here").rglob("metrics.jsonl"))) == 2


@pytest.mark.slow
def test_a_run_loads_no_library_that_it_does_without(tmp_path: Path) -> None:
    """Each takes up to two seconds to import."""
    slow = ["torch._dynamo", "sympy", "sklearn", "pandas", "scipy.stats", "torchvision", "tensorboard", "matplotlib"]
    slow += ["optuna", "ray"]
    code = (
        "import runpy, sys\n"
        "sys.argv = 'esper.train agent=react hosts=2 steps=2 updates=1 telemetry=quiet hydra.run.dir=run'.split()\n"
        "try: runpy.run_module('esper.train', run_name='__main__', alter_sys=True)\n"
        f"finally: print('loaded:', *sorted({set(slow)} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (tmp_path / "run" / "metrics.jsonl").exists(), done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_another_distribution_of_this_name_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def quiet() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            importlib.reload(esper)

    def missing(name: str) -> None:
        assert name == "esper"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    quiet()
    monkeypatch.setattr(metadata, "distribution", lambda name: name)
    with pytest.warns(UserWarning, match="another distribution named esper"):
        importlib.reload(esper)


def test_the_citation_is_valid_and_of_this_version() -> None:
    """The required keys of the Citation File Format 1.2.0, and only keys that it knows."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert set(citation) <= {"cff-version", "message", "title", "authors", "type", "version", "license", "abstract", "keywords"}
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert (str(citation["version"]), citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert all("name" in author or "family-names" in author for author in citation["authors"])
    assert all(isinstance(keyword, str) for keyword in citation["keywords"])
