"""The help text of a command."""

from esper.cli.help import groups, help_text


def test_help_shows_every_group_and_the_keys_of_every_run() -> None:
    text = help_text("About.")
    for group, options in groups().items():
        assert f"\n  {group}" in text
        assert all(option in text for option in options)
    assert all(f"\n  {key}" in text for key in ("seed=0", "updates=50", "resume=null", "plugins"))
    assert max(map(len, text.splitlines())) <= 120
