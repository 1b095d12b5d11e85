"""Rehearsal of a command: whatever needs no tensors is answered by a fork that never imports torch.

torch and its kin take seconds to import. Help texts, `--cfg` and most mistakes need only the configs, which stand beside the
parts that they build. So a fork first runs the command with placeholders for the heavy libraries, like those of Sphinx's autodoc.
If the command ends there, that is the answer. Where it would go on to compute (`end`), or where anything unexpected happens, the
fork is dropped, and the command runs as if there had been none.
"""

import os
import signal
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from io import TextIOWrapper
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from esper.notices import StatusLine, listen, notice

HEAVY = ("torch", "torchvision", "gymnasium", "pandas", "scipy", "sklearn", "tensorboard")
"""Libraries that are replaced by placeholders."""
READ_AT_ONCE = ("plugins=", "resume=")
"""Arguments that import a module of the user, which may compute, or that load a checkpoint, before anything else."""
GO_ON, ANNOUNCED, LOADS = 75, 76, 77
"""Exit codes of a rehearsal after which the command runs: it goes on silently, has printed the title, or shows what it loads."""
INTERRUPTED = "esper: interrupted; what was saved before is intact"
CLOSED = "esper: the output pipe was closed; what was saved before is intact"
LOADING = "loading PyTorch"
"""Notice while the libraries that a rehearsal did without are imported."""

announced = False
"""True if the rehearsal has printed the title of this process's run."""
active = False
"""True in the fork."""


def prepare_outputs() -> None:
    """Let commands print whatever they have to say: to nowhere if an output is closed, and question marks for characters that the
    encoding of the output lacks, such as ± in ASCII."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open as long as the process)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def rehearse(arguments: Sequence[str]) -> None:
    """Run the command in a fork with placeholders: return there, and here only if the fork has no answer; else exit as it did."""
    global announced, active
    prepare_outputs()
    try:
        os.getcwd()
    except FileNotFoundError:  # from which torch cannot be loaded either
        print("esper: the current folder was removed: change to another one", file=sys.stderr)
        sys.exit(2)
    sys.excepthook = _interrupted
    at_once = any(argument.lstrip("+").startswith(READ_AT_ONCE) for argument in arguments)
    if at_once and sys.stderr.isatty() and not any(argument.startswith("-") for argument in arguments):
        listen(StatusLine(sys.stderr))
        notice(LOADING)
    if at_once or "torch" in sys.modules or not hasattr(os, "fork") or entry_points(group="esper.parts"):
        return
    child = os.fork()
    if child == 0:
        active = True
        _hold_back()
        stand_in()
        sys.excepthook = _unexpected
        return
    interrupts = list[int]()
    ours = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))  # Ctrl-C reaches the fork, which answers
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.signal(signal.SIGINT, ours)
    if code not in (GO_ON, ANNOUNCED, LOADS):
        sys.exit(128 - code if code < 0 else code)
    if interrupts:  # a signal to this process alone, as of an IDE
        raise KeyboardInterrupt
    announced = code == ANNOUNCED
    if code != GO_ON:
        listen(StatusLine(sys.stdout if announced else sys.stderr))
        notice(LOADING)


def _hold_back() -> None:
    """Keep what the fork prints until it ends, also for a terminal and under PYTHONUNBUFFERED: if it is dropped, the command
    prints the same once more."""
    for name in ("stdout", "stderr"):
        if isinstance(old := getattr(sys, name), TextIOWrapper):
            new = TextIOWrapper(open(old.fileno(), "wb", closefd=False), old.encoding, old.errors)  # noqa: SIM115
            setattr(sys, name, new)


def close_output() -> None:
    """Send the rest of the output nowhere after its reader has gone; else Python reports the closed pipe again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stand_in() -> None:
    """Replace the heavy libraries by placeholders in this process."""
    sys.meta_path.insert(0, _Placeholders())


def end(title: str = "", *, shows: bool = False) -> None:
    """End a rehearsal where computing begins, after printing the title of the run if there is one; else do nothing.

    Args:
        title: title of the run.
        shows: if true, the command shows that it loads its libraries, as it does after a title.
    """
    if active:
        if title:
            print(title, flush=True)
        _drop(ANNOUNCED if title else LOADS if shows else GO_ON)


def _drop(code: int) -> NoReturn:
    os._exit(code)  # without the output that is still buffered


def _unexpected(*error: object) -> NoReturn:
    if isinstance(error[1], KeyboardInterrupt):
        print(INTERRUPTED, file=sys.stderr, flush=True)
        _drop(130)
    _drop(GO_ON)  # the command itself will show what is wrong


def _interrupted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show Ctrl-C and a closed output as one sentence, also while modules are imported; other errors as usual."""
    if isinstance(error, KeyboardInterrupt):
        notice()
        print(INTERRUPTED, file=sys.stderr)
    elif isinstance(error, BrokenPipeError):
        close_output()
        print(CLOSED, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


class _Placeholder:
    """Stands for anything in a library as far as the definitions of a module need it; computing with it raises an error."""

    def __getattr__(self, name: str) -> Any:
        return _found(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decorates = len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], _Placeholder)
        return args[0] if decorates else _Result()

    def __getitem__(self, key: object) -> "_Placeholder":
        return self

    def __or__(self, other: object) -> "_Placeholder":
        return self

    __ror__ = __or__

    def __hash__(self) -> int:
        return id(self)

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (object,)


class _Result(_Placeholder):
    """The result of a call, such as `torch.cuda.is_available()`; what depends on it is left to the command."""

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]  (isinstance asks for it)
        raise TypeError("a placeholder has no type")

    def __bool__(self) -> bool:
        raise TypeError("a placeholder is neither true nor false")


def _found(name: str) -> _Placeholder:
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(name)  # so that nothing takes a placeholder for what it is not
    return _Placeholder()


class _Library(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package, as the import system wants it

    def __getattr__(self, name: str) -> Any:
        return _found(name)


class _Placeholders(MetaPathFinder, Loader):
    """Finds a placeholder for every module of a heavy library."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in HEAVY else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Library(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """A placeholder has nothing to execute."""
