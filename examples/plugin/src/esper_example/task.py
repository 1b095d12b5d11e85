"""A task without files: noisy gratings, to be told apart by their orientation."""

from dataclasses import dataclass

import numpy as np
import torch

from esper.ranges import check_ranges
from esper.seeding import stream
from esper.task.images import ImagesConfig, split_images

SIDE = 8
"""Side of an image [pixels]."""


@dataclass(kw_only=True, slots=True)
class GratingsConfig(ImagesConfig):
    """Gratings of 8x8 pixels with random phases, in noise; the classes are their orientations."""

    default_host = "mixer"
    default_blueprint = ("norm", "dilated")

    orientations: int = 4
    """Number of classes, at least 2. Higher: harder."""
    noise: float = 1.0
    """Standard deviation of the noise, at least 0, where the grating has the amplitude 1. Higher: harder."""

    def __post_init__(self):
        ImagesConfig.__post_init__(self)
        check_ranges("task", self, {"[2, inf]": ["orientations"], "[0, inf)": ["noise"]})

    def load(self, context):
        draw, sizes = stream(self.split_seed, "gratings"), [512, 256, 256]
        classes = draw.integers(self.orientations, size=sum(sizes))
        angle, phase = np.pi * classes / self.orientations, draw.uniform(0, 2 * np.pi, len(classes))
        across, down = np.meshgrid(np.arange(SIDE), np.arange(SIDE))
        way = np.multiply.outer(np.cos(angle), across) + np.multiply.outer(np.sin(angle), down)  # along the grating
        images = np.cos(way * 2 * np.pi / 4 + phase[:, None, None]) + self.noise * draw.standard_normal(way.shape)
        pixels, targets = torch.from_numpy(images).float().unsqueeze(1), torch.from_numpy(classes)
        return split_images(pixels, targets, sizes, stream(self.split_seed, "gratings_split"), num_classes=self.orientations)
