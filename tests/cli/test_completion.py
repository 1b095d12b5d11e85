"""Completion in bash: what the Tab key offers comes from the tables."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from esper import completion
from esper.__main__ import COMMANDS
from esper.cli.help import groups
from esper.cli.overrides import check
from esper.config import GROUPS, ConfigError
from tests.forked import run_forked

BREAKS = "\"'@><=;|&(: "
ASK = """
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDBREAKS=$2
_esper
printf '%s\\n' "${COMPREPLY[@]}"
"""


@cache
def script() -> str:
    return completion.script("bash")


def offered(line: str, breaks: str = BREAKS) -> list[str]:
    """The words that bash puts in place of the last one, after its last = or : if these are breaks."""
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    done = subprocess.run(["bash", "-c", script() + ASK, "bash", line, breaks], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.removesuffix("\n").split("\n")


def test_commands_come_first() -> None:
    assert offered("esper ") == [f"{command} " for command in (*COMMANDS, "--help", "--version")]
    assert offered("esper tr") == ["train "]


@pytest.mark.parametrize("group", ["task", "agent", "reward"])
def test_a_group_offers_its_options(group: str) -> None:
    assert offered(f"esper train {group}=") == [f"{option} " for option in groups()[group]]


def test_keys_are_those_of_the_chosen_options() -> None:
    assert offered("esper train agent=react agent.") == ["agent.gamma=", "agent.heads."]
    assert "agent.clip=" in offered("esper train agent.")  # of the default, ppo
    assert "host.width=" in offered("esper train task=digits_mlp host."), "which the task brings"
    assert "host.width=" not in offered("esper train host.")
    assert "host.base_channels=" in offered("esper evaluate host.ba")
    assert offered("esper train 'blueprint=[norm,lora]' blueprint.") == ["blueprint.lora."]


def test_keys_of_other_commands_and_of_sweeps() -> None:
    assert offered("esper compare outc") == ["outcome="]
    assert "blocks=" in offered("esper train -m sweep=ab ")
    assert "blocks=" not in offered("esper train ")
    assert not [word for word in offered("esper evaluate ") if word.startswith(("agent", "updates"))]


def test_named_values_are_offered_and_free_ones_left_to_the_shell() -> None:
    assert offered("esper train agent.baseline=") == ["critic ", "twins ", "blend "]
    assert offered("esper train agent.base", breaks=" ") == ["agent.baseline="]
    assert offered("esper train agent.baseline=t", breaks=" ") == ["agent.baseline=twins "]
    assert offered("esper compare outcome=return", breaks=" ") == ["outcome=return ", "outcome=return_greedy "]
    assert "onnx " in offered("esper export format=")
    assert "mnist5k " in offered("esper export task=")
    assert offered("esper export host=") == [""], "it is a number there"
    assert offered("esper train resume=") == [""], "no word: bash then offers files"


def test_whatever_is_offered_can_be_typed() -> None:
    """Every group=option is known, and every key that is offered after one belongs to it."""
    lines = list(completion.table())
    options = {
        word for scope, word, *_ in lines if scope == "train" and word.partition("=")[0] in GROUPS and not word.endswith("=")
    }
    assert {f"{group}={option}" for group in GROUPS for option in groups()[group]} <= options
    keys = [word for scope, word, *_ in lines if scope == "agent=bandit"]
    assert keys
    for key in keys:
        with pytest.raises(ConfigError) as error:
            check(["agent=bandit", f"{key.partition('=')[0]}=[]nonsense"])
        assert "there is no key" not in str(error.value)


def test_an_unknown_shell_is_refused_and_help_says_how_to_install(tmp_path: Path) -> None:
    done = run_forked("esper.__main__", "completion", "bsh", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "esper: there is no completion for bsh: choose from bash, zsh; did you mean bash?\n"
    assert "bash-completion" in run_forked("esper.__main__", "completion", cwd=tmp_path).stdout
