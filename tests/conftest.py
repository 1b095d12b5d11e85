"""What all tests share: one thread a process (more make small tensors slower), and the fixtures of several folders."""

import torch

from tests.env_fixtures import gamma, make_env, one_core, plan_actions, random_actions, small_task  # noqa: F401  (fixtures)
from tests.reference_host import float64, grown  # noqa: F401  (fixtures)

torch.set_num_threads(1)
