"""Augmentation of images on their device: each is shifted by a few pixels, and half of them are mirrored.

The draws come from a stream of each host and epoch, so adding hosts changes no host's numbers; the images of all members are
moved at once, as bytes.
"""

# n images, C channels

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Augmentation:
    """Random crop of the padded image, then a random flip."""

    padding: int
    """Black pixels on each side, out of which a window of the old size is cut."""
    flip: bool
    """Mirror left and right with probability 1/2."""

    def draw(self, rng: np.random.Generator, num_images: int) -> npt.NDArray[np.uint8]:
        """For each image `[n, 3]`: rows and columns cut off above and to the left, and whether it is mirrored."""
        offsets = rng.integers(0, 2 * self.padding + 1, (num_images, 2), dtype=np.uint8)
        mirrored = rng.integers(0, 2, (num_images, 1), dtype=np.uint8)
        return np.concatenate([offsets, mirrored if self.flip else np.zeros_like(mirrored)], axis=1)

    def apply(self, images: Tensor, draws_n3: Tensor) -> Tensor:
        """Images `[n, C, H, W]` of bytes, each moved by its draw."""
        count, channels, height, width = images.shape
        draws, device = draws_n3.long(), images.device
        rows = torch.arange(height, device=device) + draws[:, :1]
        columns = torch.arange(width, device=device)
        columns = torch.where(draws[:, 2:] > 0, columns.flip(0), columns) + draws[:, 1:2]
        padded = F.pad(images, [self.padding] * 4)
        image = torch.arange(count, device=device).view(-1, 1, 1, 1)
        channel = torch.arange(channels, device=device).view(1, -1, 1, 1)
        return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
