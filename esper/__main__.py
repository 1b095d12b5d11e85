"""All commands behind one word: esper COMMAND ... does what python -m esper.COMMAND ... does."""

import runpy
import sys
from pathlib import Path

from esper.cli.version import version_text

COMMANDS = {
    "train": "train a controller, resume a run, or start an experiment of many runs",
    "evaluate": "grow held-out hosts with the controller of a run and with baselines",
    "compare": "compare the arms of an experiment, with intervals and a verdict",
    "report": "write the page of a run, which shows what the controller did and what it was worth",
    "export": "write a grown network in files that need no Esper: PyTorch, safetensors or ONNX",
    "completion": "print the completion of these commands for a shell: esper completion bash",
}
"""Command -> what it does. Each is the module `esper.<command>`; completion offers whatever is in this table."""

HELP = """\
Train controllers that watch networks train, and grow them.

usage: esper COMMAND [FLAG]... [KEY=VALUE]...   does what python -m esper.COMMAND does
       esper COMMAND --help                     groups, options and keys of a command
       esper --version

commands:
{commands}

for example:
  esper train                                   one run with the defaults, 2.5 to 4 minutes on a free core
  esper train task=digits_drift reward=sparse   another task, another reward
  esper evaluate checkpoint=FOLDER              the folder that the run printed
  eval "$(esper completion bash)"               turn on Tab completion"""


def help_text() -> str:
    """Return the help text, which fits one screen."""
    return HELP.format(commands="\n".join(f"  {name:<12}{about}" for name, about in COMMANDS.items()))


def refusal(command: str) -> str:
    """Return one sentence about a command that does not exist."""
    from difflib import get_close_matches  # late: a command that exists need not wait for it

    if "=" in command:
        return f"{command} is not a command: put one in front, as in esper train {command}"
    close = get_close_matches(command.removeprefix("esper.").lower(), COMMANDS, n=1, cutoff=0.6)
    nearest = f"; did you mean {close[0]}?" if close else ""
    return f"there is no command {command}: choose from {', '.join(COMMANDS)}{nearest}"


def main() -> None:
    """Run the command that the first argument names, in this process."""
    first = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if first in ("-h", "--help"):
        print(help_text())
    elif first == "--version":
        if (text := version_text()) is None:
            sys.exit("esper: this copy is not installed and has no version: pip install -e . installs it")
        print(text)
    elif first in COMMANDS:
        if not sys.flags.safe_path:
            sys.path[0] = str(Path.cwd())  # as python -m does; the script of a package puts its own folder there
        sys.argv[1:] = sys.argv[2:]
        runpy.run_module(f"esper.{first}", run_name="__main__", alter_sys=True)
    else:
        print(f"esper: {refusal(first)}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
