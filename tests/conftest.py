"""One thread in every test process: more make small tensors slower, and a second process slower still."""

import torch

torch.set_num_threads(1)
