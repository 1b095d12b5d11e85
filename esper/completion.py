"""Tab completion of the command esper, from the same tables as the commands: esper completion bash

Install it for this and all later shells with

  mkdir -p ~/.local/share/bash-completion/completions                          (bash, with the package bash-completion)
  esper completion bash > ~/.local/share/bash-completion/completions/esper
  esper completion zsh > ~/.esper.zsh; echo 'source ~/.esper.zsh' >> ~/.zshrc  (zsh, after compinit)

or for this shell alone with eval "$(esper completion bash)". The Tab key then completes commands, groups, options, keys, and
named values. For each group, it offers the keys of the option on the command line, or else of the default option. Write the file
again after an update, or after installing a package with parts of Esper.
"""

import sys
from importlib.metadata import entry_points

from esper.cli import rehearsal

if __name__ == "__main__" and not entry_points(group="esper.parts"):
    rehearsal.stand_in()  # this command only lists names: it needs no torch

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from esper.__main__ import COMMANDS
from esper.cli.command import in_one_sentence
from esper.cli.help import defaults, groups, yaml_names
from esper.cli.refusals import sweep_keys
from esper.cli.transfer import TRANSFERABLE
from esper.config import ALIASES, BROUGHT, CONF, GROUPS, MANY, Config, ConfigError, did_you_mean
from esper.evaluate import EvaluateConfig
from esper.evaluation.exported import FORMATS
from esper.export import ExportConfig
from esper.lab.outcomes import OUTCOMES, CompareConfig
from esper.plugins import load_plugins
from esper.report import ReportConfig
from esper.sweeps import SWEEPS

EVALUATING = ("evaluate", "compare", "export")
"""Commands that take overrides of a run."""
FLAGS = {
    "train": ("--help", "-m", "--cfg", "--config-dir"),
    **dict.fromkeys(EVALUATING, ("--help", "--config-dir")),
    "report": ("--help",),
}

# Reads a table of "SCOPE WORD" lines and the words typed so far, the last of which is completed. A word counts if its scope is
# the command or a chosen option. It is completed up to the next dot or equals sign, so that hundreds of keys are shown by level.
AWK = r"""
BEGIN {
    n = split(ENVIRON["ESPER_TYPED"], typed, "\n"); last = typed[n]
    for (i = 3; i < n; i++) {
        gsub(/[]["']/, "", typed[i]); split(typed[i], parts, "="); set[parts[1]] = 1
        options = split(parts[2], option, ",")
        for (k = 1; k <= options; k++) on[parts[1] "=" option[k]] = 1
    }
    on[n == 2 ? "esper" : typed[2]] = 1
}
$1 == "default" { split($3, parts, "="); if (($2 in on) && !(parts[1] in set)) on[$3] = 1; next }
$1 == "brings" { split($3, parts, "="); if (($2 in on) && !(parts[1] in set)) on[$3] = 1; next }
($1 in on) && index($2, last) == 1 {
    rest = substr($2, length(last) + 1)
    if (index(last, "=") == 0 && match(rest, /[.=]/)) rest = substr(rest, 1, RSTART)
    if (rest == "" && last ~ /[.=]$/) next
    if (!((last rest) in shown)) { shown[last rest] = 1; print last rest }
}"""

SHELLS = {
    "bash": """\
_esper() {
    local line=${COMP_LINE:0:COMP_POINT} found cut
    local -a typed
    read -r -a typed <<< "$line"
    [[ $line == *" " ]] && typed+=("")
    local last=${typed[${#typed[@]}-1]}
    cut=${last%"${last##*[=:]}"}   # bash replaces what follows the last = or : only
    [[ $COMP_WORDBREAKS == *=* ]] || cut=
    COMPREPLY=()
    while IFS= read -r found; do
        [[ $found == *[.=] ]] || found+=" "
        COMPREPLY+=("${found#"$cut"}")
    done < <(_esper_found "${typed[@]}")
}
complete -o nospace -o default -F _esper esper""",
    "zsh": """\
_esper() {
    local -a found open whole
    found=("${(@f)$(_esper_found "${(@)words[1,CURRENT]}")}")
    open=(${(M)found:#*[.=]}) whole=(${found:#*[.=]})
    if (( ${#open} + ${#whole} )); then
        compadd -S '' -- $open
        compadd -- $whole
    else
        compset -P '*='   # the value of a key may be a file or a folder
        _files
    fi
}
compdef _esper esper""",
}
"""Shell -> how it asks `_esper_found` for words and shows them."""

SCRIPT = """\
# Completion of esper for {shell}, written by: esper completion {shell}
_esper_found() {{   # the words typed so far -> completions of the last one, one per line
    local IFS=$'\\n'
    ESPER_TYPED="$*" awk "$_esper_program" <<'END'
{table}
END
}}
_esper_program='{program}'
{adapter}"""


def table() -> Iterator[tuple[str, ...]]:
    """Yield what can be typed where: a scope, which is a command or a chosen option, and a word; defaults come first."""
    chosen = {group: options for group, options in defaults().items() if group in GROUPS}
    late = [group for group in chosen if group in BROUGHT]  # a task decides on them
    for group in (group for group in chosen if group not in late):
        told = ("train", *(EVALUATING if group in TRANSFERABLE else ()))
        yield from (("default", command, f"{group}={option}") for command in told for option in chosen[group])
    for name in groups()["task"]:
        yield from (("brings", f"task={name}", f"{group}={option}") for group, some in brought(name).items() for option in some)
    yield from (("esper", command) for command in (*COMMANDS, "--help", "--version"))
    yield from (("completion", shell) for shell in SHELLS)
    for command, flags in FLAGS.items():
        yield from ((command, flag) for flag in flags)
    for group, options in groups().items():
        commands = [
            command
            for command in FLAGS
            if command == "train" or (command in EVALUATING and ALIASES.get(group, group) in TRANSFERABLE)
            if (command, group) != ("export", "host")  # where it is a number
        ]
        yield from ((command, f"{group}={option}") for command in commands for option in options)
    keyed = (
        (Config, "train"),
        (EvaluateConfig, "evaluate"),
        (CompareConfig, "compare"),
        (ReportConfig, "report"),
        (ExportConfig, "export"),
    )
    for node, command in keyed:
        yield from ((command, word) for word in words_of(node, ""))
    yield from ((command, f"{key}=") for command in EVALUATING for key in TRANSFERABLE if key not in GROUPS)
    yield from (("compare", f"outcome={name}") for name in OUTCOMES)
    yield from (("export", f"format={name}") for name in FORMATS)
    for group, options in GROUPS.items():
        for name in (*options, *yaml_names(group)):
            prefix = f"{group}.{name}." if group in MANY else f"{group}."
            yield from ((f"{group}={name}", word) for word in words_of(options[base(group, name)], prefix))
    for name in yaml_names("sweep"):
        node = next(node for kind, node in SWEEPS.items() if name.startswith(kind))
        yield from ((f"sweep={name}", f"{key}=") for key in sweep_keys(node))


def words_of(node: type, prefix: str) -> Iterator[str]:
    """Yield the keys of a config as they are typed, and the values that have names; groups are not its keys."""
    for field in fields(node):
        if field.name.startswith("_") or (node is Config and field.name in GROUPS):
            continue
        key, hint = f"{prefix}{field.name}", get_type_hints(node)[field.name]
        kinds = get_args(hint) if get_origin(hint) is not list and get_args(hint) else (hint,)
        nested = [kind for kind in kinds if is_dataclass(kind) and isinstance(kind, type)]
        yield from (word for kind in nested for word in words_of(kind, f"{key}."))
        if not nested:
            yield f"{key}="
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Enum):
                yield from (f"{key}={name}" for name in kind.__members__)
            elif kind is bool:
                yield from (f"{key}={value}" for value in ("true", "false"))


def _listed(group: str, name: str) -> list[Any]:
    """Return the defaults list of an option in YAML."""
    preset: Any = OmegaConf.load(CONF / group / f"{name}.yaml")
    return list(preset.defaults)


def base(group: str, name: str) -> str:
    """Return the option in the table on which an option is based; itself, if it is no YAML file."""
    while name not in GROUPS[group]:
        name = next(entry for entry in _listed(group, name) if isinstance(entry, str) and entry != "_self_")
    return name


def brought(task: str) -> dict[str, list[str]]:
    """Return the options that a task comes with, by group."""
    if task in GROUPS["task"]:
        kind = GROUPS["task"][task]
        options = {group: getattr(kind, f"default_{group}") for group in BROUGHT}
        return {group: [option] if isinstance(option, str) else list(option) for group, option in options.items()}
    entries = _listed("task", task)
    found = brought(next(entry for entry in entries if isinstance(entry, str) and entry != "_self_"))
    for entry in entries:
        for key, option in entry.items() if isinstance(entry, DictConfig) else ():
            found[str(key).removeprefix("override /")] = [option] if isinstance(option, str) else list(option)
    return found


def script(shell: str) -> str:
    """Return the completion script for a shell."""
    lines = "\n".join(dict.fromkeys(" ".join(line) for line in table()))
    program = AWK.strip().replace("'", "'\\''")
    return SCRIPT.format(shell=shell, table=lines, program=program, adapter=SHELLS[shell])


def main(arguments: list[str]) -> None:
    """Print the script for the shell that was named."""
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        print((__doc__ or "").strip())
        return
    with in_one_sentence():
        if len(arguments) > 1 or arguments[0] not in SHELLS:
            named = " ".join(arguments)
            raise ConfigError(
                f"there is no completion for {named}: choose from {', '.join(SHELLS)}{did_you_mean(named, [*SHELLS])}"
            )
        load_plugins(())
        print(script(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
