"""The console: a few plain lines in files and pipes, a live display in a terminal, which is restored at the end."""

import io
import math
import os
import re
import signal
import sys
import time
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import pytest
from rich.console import Console as RichConsole

from esper.telemetry.anomalies import Anomaly
from esper.telemetry.base import Command, RunInfo, Writer
from esper.telemetry.console import ConsoleConfig, PlainConsole
from esper.telemetry.jsonl import JsonlWriter
from esper.telemetry.live import LiveConsole
from esper.telemetry.tags import STAGES
from esper.text import bins, clock, decimals, duration, number, percent, short, si, spark

ROOT = Path(__file__).parents[2]
METRICS = {
    "host/accuracy": 71.26,
    "host/committed_accuracy": 40.0,
    "host/parameters_grown": 1204.0,
    "policy/return": 66.8,
    **dict.fromkeys(STAGES.values(), 0.5),
}

DEAD = Anomaly(kind="kl_spike", tag="policy/core_dead", value=1.0, threshold=0.5, meaning="the core is dead", remedy="lower it")


def build_console(file: TextIO, **run: Any) -> Writer:
    with redirect_stdout(file):
        return ConsoleConfig().build(RunInfo(folder=Path(), **run))


def plain_lines(total: int, resume: int = 0) -> list[str]:
    file = io.StringIO()
    console = build_console(resume_update=resume, total_updates=total, file=file)
    assert isinstance(console, PlainConsole)
    console.start("shaped", {})
    for update in range(resume + 1, total + 1):
        for t in range(21):
            console.step(t, 20)
        console.write(update, METRICS)
        console.show(update, METRICS)
    console.finish([("files", "runs/a"), ("next", Command("python -m esper.evaluate 'checkpoint=runs/a b'"))], {})
    console.close()
    return file.getvalue().splitlines()


@pytest.mark.parametrize(("total", "lines"), [(1, 7), (3, 9), (10, 16), (97, 17), (1000, 17)])
def test_plain_is_short(total: int, lines: int) -> None:
    assert len(plain_lines(total)) == lines


def test_plain_lines_have_no_control_characters() -> None:
    lines = plain_lines(1000)
    assert all(line.isprintable() for line in lines)
    assert lines[0] == "shaped"
    assert re.fullmatch(r"update 1/1000: about \d+ s left", lines[1])
    assert [line.split(",")[0] for line in lines[2:-6]] == [f"update {tenth}00/1000" for tenth in range(1, 10)]
    assert "accuracy 71.26 %, committed accuracy 40 %, parameters grown 1,204, return 66.8" in lines[2]
    assert re.fullmatch(r"trained for 0:00:\d\d", lines[-6])
    assert lines[-5:] == [
        "  return              no clear trend: first 66.8, last 66.8, mean of last 100: 66.8 ± 0",
        "  committed accuracy  no clear trend: first 40 %, last 40 %, mean of last 100: 40 ± 0 %",
        "  files               runs/a",
        "next:",
        "  python -m esper.evaluate 'checkpoint=runs/a b'",
    ]


def test_the_size_and_the_expected_time_are_said_first() -> None:
    file = io.StringIO()
    console = build_console(total_updates=100, size="32 hosts of 496 parameters", file=file)
    console.start("shaped", {})
    console.show(1, METRICS | {"time/host_epochs_per_second": 1900.0})
    assert file.getvalue().splitlines()[1] == "32 hosts of 496 parameters"
    assert file.getvalue().splitlines()[2].endswith(" left at 1,900 host epochs/s")
    assert [duration(seconds) for seconds in (4, 89, 90, 720, 5399, 5400, 1e6)] == [
        *("4 s", "89 s", "1.5 min", "12 min", "90 min", "1.5 h", "280 h"),
    ]


def test_lines_of_one_of_several_runs_start_with_its_name() -> None:
    file = io.StringIO()
    console = build_console(resume_update=0, total_updates=2, name="plain/block-00", size="folder: a\ndata: b", file=file)
    console.start("shaped", {})
    console.write(1, METRICS)
    console.show(1, METRICS)
    console.anomaly(1, DEAD, first=True)
    console.finish([("files", "a"), ("next", Command("ls"))], {})
    lines = file.getvalue().splitlines()
    assert len(lines) == 6
    assert all(line.startswith("plain/block-00: ") for line in lines)
    assert lines[-1].endswith(
        ": return, only 1 update: first 66.8, last 66.8; committed accuracy, only 1 update: first 40 %, last 40 %; files: a"
    ), "the sweep prints the commands"


def test_plain_prints_an_anomaly_at_once() -> None:
    file = io.StringIO()
    console = build_console(resume_update=0, total_updates=1000, file=file)
    console.write(3, METRICS)
    console.show(3, METRICS)
    console.anomaly(3, DEAD, first=True)
    assert file.getvalue() == "warning: update 3/1000: kl spike: the core is dead; lower it\n"


def test_plain_counts_the_remaining_updates_after_a_resume() -> None:
    lines = plain_lines(100, resume=85)
    assert lines[0] == "shaped, resumed after update 85"
    assert re.fullmatch(r"update 86/100: about \d+ s left", lines[1])
    assert [line.split(",")[0] for line in lines[2:-6]] == ["update 90/100"]


def test_plain_survives_an_ascii_log() -> None:
    raw = io.BytesIO()
    console = PlainConsole(io.TextIOWrapper(raw, encoding="ascii"), RunInfo(folder=Path()))
    console.start("32 hosts × 20", {})
    assert raw.getvalue() == b"32 hosts ? 20\n"


def live(width: int = 80, **run: Any) -> tuple[LiveConsole, RichConsole]:
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = RichConsole(file=file, width=width, height=24, force_terminal=True, record=True)
    return LiveConsole(console, RunInfo(**{"folder": Path(), "total_updates": 100, **run})), console


def picture(live: LiveConsole, console: RichConsole) -> list[str]:
    lines = console.render_lines(live._picture())
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


@pytest.mark.parametrize("width", [50, 80, 120])
def test_live_display_fits_and_shows_the_run(width: int) -> None:
    shown, console = live(width)
    for update in range(1, 40):
        record = METRICS | {"host/accuracy": 50.0 + update, "governor/rollbacks_divergence": 2.0}
        shown.write(update, record)
        shown.show(update, record)
    shown.step(13, 20)
    lines = picture(shown, console)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert len(lines) <= (12 if width >= 100 else 16)
    for words in ("update 40/100 · host epoch 13/20", "89 %", "1,204", "66.8", "left", *STAGES):
        assert words in text
    assert re.search(r"rollbacks +78 +in 39 updates", text)
    assert "explained variance" not in text, "what was not measured is not shown"
    curve = "▁▂▃▄▅▆▇█" if width < 70 else "▁▁▂▂▃▃▄▄▅▅▆▆▇▇██"
    assert f"{curve} 51.0 to 89.0" in text, "the curve of all updates, with their range"


def test_live_counts_the_rollbacks_before_a_resume(tmp_path: Path) -> None:
    record = METRICS | {"governor/rollbacks_divergence": 2.0}
    with closing(JsonlWriter(tmp_path)) as writer:
        for update in range(1, 4):
            writer.write(update, record)
    shown, console = live(folder=tmp_path, resume_update=2)
    shown.write(3, record)
    shown.show(3, record)
    assert re.search(r"rollbacks +6 +in 3 updates", "\n".join(picture(shown, console)))


def test_live_prints_an_anomaly_above_the_display() -> None:
    shown, console = live()
    shown.start("shaped", {})
    shown.anomaly(7, DEAD, first=True)
    shown.close()
    assert isinstance(console.file, io.TextIOWrapper)
    text = console.file.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert text.count("warning: update 7/100: kl spike: the core is dead; lower it") == 1


@pytest.mark.parametrize(
    ("shared", "encoding", "kind"), [(False, "utf-8", LiveConsole), (True, "utf-8", PlainConsole), (False, "ascii", PlainConsole)]
)
def test_runs_that_share_a_terminal_and_ascii_terminals_get_plain_lines(
    shared: bool, encoding: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    file = io.TextIOWrapper(buffer := io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(file, "isatty", lambda: True)
    console = build_console(resume_update=0, total_updates=5, name="plain/block-00", shared=shared, file=file)
    assert isinstance(console, kind)
    console.start("shaped", {})
    console.close()
    file.flush()
    assert b"plain/block-00: shaped" in buffer.getvalue()


def written(console: RichConsole) -> list[str]:
    assert isinstance(console.file, io.TextIOWrapper)
    console.file.flush()
    text = console.file.buffer.getvalue().decode()  # type: ignore[attr-defined]
    return [re.sub(r"\x1b\[[\d;?]*\w", "", line).strip() for line in text.splitlines()]


@pytest.mark.parametrize("width", [50, 80, 120])
def test_a_command_is_printed_on_one_line_as_it_is_typed(width: int) -> None:
    shown, console = live(width)
    command = Command("python -m esper.evaluate 'checkpoint=/a/long folder/whose/name/is/wider/than/fifty/columns/of/text'")
    shown.start("shaped", {})
    shown.finish([("time", "training 60 %, validation 20 %, growth potential 10 %, other 10 %"), ("next", command)], {})
    lines = written(console)
    assert lines[-2:] == ["next:", command]
    assert max(len(line) for line in lines if line != command) <= width


def test_a_step_is_shown_until_it_is_over() -> None:
    shown, console = live()
    shown.note("pretraining 32 hosts", "epoch 3/20")
    assert picture(shown, console)[0] == "update 1/100 · pretraining 32 hosts epoch 3/20"
    shown.step(1, 20)
    assert picture(shown, console)[0] == "update 1/100 · host epoch 1/20"
    file = io.StringIO()
    plain = build_console(file=file)
    for epoch in range(3):
        plain.note("pretraining 32 hosts", f"epoch {epoch}/3")
    plain.note("")
    assert file.getvalue() == "pretraining 32 hosts\n"


def test_the_time_of_earlier_processes_counts() -> None:
    shown, console = live(spent=3600.0)
    assert "1:00:00 · " in picture(shown, console)[1]
    file = io.StringIO()
    plain = build_console(total_updates=10, resume_update=4, spent=3600.0, file=file)
    plain.show(5, METRICS)
    plain.finish([], {})
    assert "update 5/10, 1:00:00 elapsed" in file.getvalue()
    assert "trained for 1:00:00\n" in file.getvalue()


def test_live_bar_moves_within_the_first_rollout() -> None:
    shown, _ = live()
    done = []
    for t in (0, 1, 10, 20):
        shown.step(t, 20)
        done.append(shown._progress.tasks[0].completed)
    assert done == [0, 0.05, 0.5, 1.0]


def test_live_redraws_four_times_a_second_at_most() -> None:
    """However often it is called: 2,000 calls here, about half a second."""
    shown, console = live()
    frames = 0
    render = console.print

    def counted(*args: object, **kwargs: object) -> None:
        nonlocal frames
        frames += 1
        render(*args, **kwargs)  # type: ignore[arg-type]

    console.print = counted  # type: ignore[method-assign]
    begun = time.monotonic()
    shown.start("shaped", {})
    for call in range(2000):
        shown.step(call % 20, 20)
        if call % 20 == 0:
            shown.show(call // 20 + 1, METRICS)
    time.sleep(max(0.0, 0.5 - (time.monotonic() - begun)))
    shown.close()
    elapsed = time.monotonic() - begun
    assert 2 <= frames <= 4 * elapsed + 4  # and one each when it starts and stops


def test_numbers_and_curves() -> None:
    assert [number(value) for value in (0.0, 0.97312, 71.256, 1234.5, -123456)] == [
        "0",
        "0.9731",
        "71.26",
        "1,234",
        "-123,456",
    ]
    assert [short(value) for value in (0.00102, 14.26, 100.4, 123456, 2.5e7)] == ["0.00", "14.3", "100", "123k", "25M"]
    assert short(999_600) == "1M"
    values = (0, 7, 496, 4213, 995_000, 999_999, 2e9, float("nan"))
    assert [si(value, 2, " ") for value in values] == ["0", "7", "500", "4.2 k", "1 M", "1 M", "2 G", "-"]
    assert [si(value) for value in (7067, 999_600, -1234, 0.25)] == ["7.07k", "1M", "-1.23k", "0.25"]
    assert [percent(share) for share in (0.0, 0.00171, 0.384, 1.0)] == ["0 %", "0.17 %", "38 %", "100 %"]
    assert [decimals(*row) for row in ((0.0019, -0.0011, 0.0049), (0.2, -math.inf), (1e8, 9e7), (0.0,))] == [4, 2, 0, 2]
    assert bins([1, 3, float("inf"), 5, 7, float("nan"), 9], 2) == [2, 7]
    assert bins([], 4) == []
    assert spark([0, 7, float("inf"), float("nan"), 3.5]) == "▁█▅"
    assert spark([2, 2]) == "▁▁"
    assert spark([]) == ""
    assert [clock(seconds) for seconds in (0.2, 59.6, 3661)] == ["0:00:00", "0:01:00", "1:01:01"]


# ---- in a real terminal

CODE = """
from esper.cli.rehearsal import stand_in
stand_in()  # what it imports needs no torch
import sys, time, types
package = types.ModuleType("esper.telemetry")  # the room without its other files, which would load torch: seconds
package.__path__ = [entry + "/esper/telemetry" for entry in sys.path]
sys.modules["esper.telemetry"] = package
from pathlib import Path
from esper.telemetry.base import RunInfo
from esper.telemetry.console import ConsoleConfig
console = ConsoleConfig().build(RunInfo(folder=Path(), total_updates=5))
try:
    console.start("shaped", {})
    for update in range(1, 6):
        for t in range(21):
            console.step(t, 20)
            time.sleep(0.002 if "hang" not in sys.argv else 0.5)
        if "raise" in sys.argv:
            raise RuntimeError("boom")
        console.show(update, {"host/accuracy": 50.0 + update})
    console.finish([("accuracy", "55 %")], {})
finally:
    console.close()
"""


def in_terminal(*words: str, **environment: str) -> tuple[str, int]:
    """Output and exit status of the code above in a pseudo-terminal of 80 columns; "hang" is interrupted as by Ctrl-C."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a parent in the background makes its children ignore it
        base = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        os.execve(sys.executable, [sys.executable, "-c", CODE, *words], {**os.environ, **base, **environment})
    output, interrupted = b"", False
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # raised by Linux when the other side is closed
            break
        if not chunk:
            break
        output += chunk
        if "hang" in words and not interrupted and b"host epoch" in output:
            os.kill(pid, signal.SIGINT)
            interrupted = True
    os.close(terminal)
    return output.decode(), os.waitpid(pid, 0)[1]


HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
needs_terminal = pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")


@needs_terminal
@pytest.mark.parametrize("ending", ["", "raise", "hang"])
def test_the_cursor_is_restored(ending: str) -> None:
    output, status = in_terminal(ending)
    assert HIDE in output, "no live console, so this test showed nothing"
    assert output.rindex(SHOW) > output.rindex(HIDE)
    assert bool(status) == bool(ending)
    word = {"": "55 %", "raise": "boom", "hang": "KeyboardInterrupt"}[ending]
    assert output.rindex(word) > output.rindex(SHOW)


@needs_terminal
def test_no_color_is_honoured() -> None:
    colour = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|38;)[\d;]*m")
    assert not colour.search(in_terminal(NO_COLOR="1")[0])


@needs_terminal
def test_a_dumb_terminal_gets_plain_lines() -> None:
    output, status = in_terminal(TERM="dumb")
    assert status == 0
    assert "\x1b" not in output
    assert output.count("\n") == 7
