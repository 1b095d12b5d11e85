"""Notices of steps before there is anything else to show."""

import io

import pytest

from esper.notices import StatusLine, heard_by, notice


def test_a_pipe_gets_a_line_per_step() -> None:
    file = io.StringIO()
    with heard_by(StatusLine(file, "a: ")):
        for epoch in (1, 2):
            notice("pretraining 4 hosts", f"epoch {epoch}/2")
        notice()
        notice("building 4 hosts")
    notice("nobody listens")
    assert file.getvalue() == "a: pretraining 4 hosts\na: building 4 hosts\n"


def test_a_terminal_gets_one_line_that_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    file = io.StringIO()
    monkeypatch.setattr(file, "isatty", lambda: True)
    with heard_by(StatusLine(file)):
        notice("pretraining 4 hosts", "epoch 1/2")
        notice()
        notice()
    assert file.getvalue() == "\r\x1b[Kpretraining 4 hosts epoch 1/2\r\x1b[K"
