"""The parser of Hydra's flags."""

from argparse import Action, ArgumentParser
from typing import Any

import pytest
from hydra._internal.utils import get_args_parser

from esper.cli.flags import admit_lazy_help


def test_a_help_text_that_is_built_when_it_is_shown_passes_the_check_of_new_versions_of_python(monkeypatch) -> None:
    def check(_: ArgumentParser, action: Action) -> None:
        if "%" in action.help:  # pyright: ignore[reportOperatorIssue]
            raise ValueError("badly formed help string")

    monkeypatch.setattr(ArgumentParser, "_check_help", check, raising=False)
    admit_lazy_help()
    parser: Any = get_args_parser()
    for action in parser._actions:
        parser._check_help(action)
    wrong = Action(["--share"], "share", help="in %")
    with pytest.raises(ValueError, match="badly formed"):
        parser._check_help(wrong)
