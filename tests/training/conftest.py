"""The uninterrupted run that several files compare with."""

import pytest

from esper.training.trainer import Trainer
from tests.training.small_run import config


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """An uninterrupted run, only to be read."""
    folder = tmp_path_factory.mktemp("whole")
    Trainer(config(), folder).run()
    return folder
