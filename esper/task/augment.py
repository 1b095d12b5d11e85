"""Image augmentation on the device: random shifts and flips.

Each host and epoch has a random stream of its own, so that adding hosts does not change the numbers of others. The images of all
members are augmented at once, as they are stored: bytes are padded with 0, which is black, and scaled floats with 0, the mean.
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
    """A random crop of the padded image, followed by a random flip."""

    padding: int
    """Padding on each side [pixels] from which a window of the original size is cropped."""
    flip: bool
    """If true, mirror left and right with probability 1/2."""

    def draw(self, rng: np.random.Generator, num_images: int) -> npt.NDArray[np.uint8]:
        """Return `[n, 3]`: for each image the rows cropped above, the columns cropped on the left, and whether to mirror."""
        offsets = rng.integers(0, 2 * self.padding + 1, (num_images, 2), dtype=np.uint8)
        mirrored = rng.integers(0, 2, (num_images, 1), dtype=np.uint8)
        return np.concatenate([offsets, mirrored if self.flip else np.zeros_like(mirrored)], axis=1)

    def apply(self, images: Tensor, draws_n3: Tensor) -> Tensor:
        """Apply the draws to images `[n, C, H, W]`, bytes or floats."""
        count, channels, height, width = images.shape
        draws, device = draws_n3.long(), images.device
        rows = torch.arange(height, device=device) + draws[:, :1]
        columns = torch.arange(width, device=device)
        columns = torch.where(draws[:, 2:] > 0, columns.flip(0), columns) + draws[:, 1:2]
        padded = F.pad(images, [self.padding] * 4)
        image = torch.arange(count, device=device).view(-1, 1, 1, 1)
        channel = torch.arange(channels, device=device).view(1, -1, 1, 1)
        return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
