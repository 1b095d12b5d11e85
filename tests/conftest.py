"""What all tests share: one thread a process (more make small tensors slower), and the fixtures of several folders."""

import torch

from tests.reference_host import float64, grown  # noqa: F401  (fixtures)

torch.set_num_threads(1)
