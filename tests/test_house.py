"""The house itself: imports point one way, Hydra stays at the door, and no room grows out of sight."""

import ast
from functools import cache
from pathlib import Path

import pytest

ESPER = Path(__file__).parent.parent / "esper"
FILES = sorted(ESPER.rglob("*.py"))

# A room may import the rooms of earlier rows, and those beside it in its own row.
ROWS = (
    ("text", "options"),
    ("seeding", "ranges", "memory", "notices", "phases", "fusion", "hosts", "lifecycle", "optimisers", "checkpoint", "files"),
    ("seeds",),
    ("growth",),
    ("measure", "task"),
    ("pool",),
    ("reward", "governor"),
    ("env",),
    ("buffer", "agent"),
    ("telemetry", "stats", "sweeps"),
    ("grammar", "config"),
    ("plugins",),
    ("training",),
    ("cli",),
    ("evaluation",),
    ("growable",),
    ("lab",),
    ("page",),
    ("wrappers",),
    ("gym",),
    ("train", "evaluate", "compare", "report", "export", "completion", "__main__"),
)
LEVEL = {room: level for level, row in enumerate(ROWS) for room in row}
DOOR = {"grammar", "config", "training", "cli", "evaluation", "lab", "page", *ROWS[-1]}
"""Rooms that may know Hydra and OmegaConf."""
MAX_LINES, MAX_FUNCTION = 400, 60
LONG = {
    "fusion/kernels.py": "Numba keeps compiled code until the file of a function changes, whatever that function calls",
    "agent/ppo/ppo.py": "one algorithm: its config, how it acts and how it learns",
}
"""Files that may be longer than `MAX_LINES`, and why."""


def room(path: Path) -> str:
    return path.relative_to(ESPER).with_suffix("").parts[0]


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imported(path: Path) -> tuple[str, ...]:
    found: list[str] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)


def name(path: Path) -> str:
    return str(path.relative_to(ESPER))


def test_imports_point_one_way() -> None:
    for path in (path for path in FILES if room(path) != "__init__"):
        here = room(path)
        assert here in LEVEL, f"say in ROWS which rooms {here} may import"
        for target in imported(path):
            package, _, rest = target.partition(".")
            if package == "esper" and rest:
                there = rest.split(".")[0]
                assert LEVEL[there] <= LEVEL[here], f"{path}: {here} comes before {there} and may not import it"
            if package in ("hydra", "omegaconf"):
                assert here in DOOR, f"{path} imports {package}: only {', '.join(sorted(DOOR))} may"


def test_nothing_is_imported_in_a_circle() -> None:
    """Rooms of one row may know each other, but not both ways."""
    pairs = {
        (room(path), target.split(".")[1])
        for path in FILES
        for target in imported(path)
        if target.startswith("esper.") and target.split(".")[1] != room(path)
    }
    assert not [pair for pair in pairs if pair[::-1] in pairs]


def test_no_file_and_no_function_is_too_long() -> None:
    assert not [name(path) for path in FILES if len(path.read_text().splitlines()) > MAX_LINES and name(path) not in LONG]
    assert not [
        f"{name(path)}: {node.name}, {(node.end_lineno or 0) - node.lineno + 1} lines"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION
    ]


@pytest.mark.parametrize("folder", ["tests", "docs"])
def test_no_test_and_no_script_of_the_docs_is_too_long(folder: str) -> None:
    files = {str(path): len(path.read_text().splitlines()) for path in (ESPER.parent / folder).rglob("*.py")}
    assert not {file: lines for file, lines in files.items() if lines > MAX_LINES}


@pytest.mark.parametrize("file", ["pool/local.py", "env/growth_env.py", "env/guard.py"])
def test_a_shard_is_the_only_door_to_its_network(file: str) -> None:
    """So that a shard may live elsewhere: nobody else reaches through, and what is asked of it is plain data."""
    tree = ast.parse((ESPER / file).read_text())
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "network"]


def test_a_class_name_is_defined_once() -> None:
    """One thing for one word."""
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name(path))
    assert not {known: places for known, places in homes.items() if len(places) > 1}


def test_no_drawer_for_odds_and_ends() -> None:
    assert not [path for path in FILES if path.stem in ("utils", "util", "helpers", "misc", "common")]


def test_the_package_itself_is_light() -> None:
    assert {target.partition(".")[0] for target in imported(ESPER / "__init__.py")} <= {"warnings", "importlib", "typing"}


def test_every_long_file_is_still_long() -> None:
    assert not [path for path in LONG if len((ESPER / path).read_text().splitlines()) <= MAX_LINES]


def test_a_name_has_one_address() -> None:
    """Packages re-export nothing: an `__init__.py` holds at most a docstring."""
    for path in (path for path in FILES if path.name == "__init__.py" and path.parent != ESPER):
        body = ast.parse(path.read_text()).body
        assert all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body), path


def test_agents_are_met_through_their_interfaces() -> None:
    """Outside agent/, nothing asks which concrete agent it has: capabilities are asked of the config by name."""
    for path in FILES:
        if room(path) == "agent":
            continue
        assert 'startswith("ppo' not in path.read_text(), path
        concrete = {
            alias.asname or alias.name
            for node in nodes(path)
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("esper.agent.")
            and node.module != "esper.agent.base"
            for alias in node.names
        }
        asked = {
            name.id
            for call in nodes(path)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "isinstance"
            for name in ast.walk(call.args[1])
            if isinstance(name, ast.Name)
        }
        assert not concrete & asked, f"{path} asks for {concrete & asked}"
