"""What the samples, classes and targets of a user are to a network."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.evaluation.regrow import in_and_out
from esper.fusion.layout import Layout
from esper.hosts.cnn import CNNConfig
from esper.hosts.mlp import MLPConfig
from esper.task.check import check_samples
from esper.task.data import Data, Units
from esper.task.image_arrays import ImageArraysConfig
from esper.task.table_classes import TableClassesConfig
from esper.task.table_file import TableFileConfig

RNG = np.random.default_rng(0)
ROWS = RNG.normal(50, 7, (60, 3)).round(2)
KINDS = np.array(["ant", "bee", "cow"])[np.arange(60) % 3]
NUMBERS = (ROWS.sum(1) * 10).round(1)


def table(folder: Path, last: np.ndarray) -> str:
    lines = ["a,b,c,what", *(",".join(map(str, (*row, value))) for row, value in zip(ROWS, last, strict=True))]
    (folder / "table.csv").write_text("\n".join(lines))
    return str(folder / "table.csv")


def in_units(data: Data) -> np.ndarray:
    """Return the test samples as the user has them, in rows."""
    assert data.units.mean is not None
    assert data.units.std is not None
    x = data.test_x.numpy()
    channels = (1, -1, *[1] * (x.ndim - 2))
    return (x * np.reshape(data.units.std, channels) + np.reshape(data.units.mean, channels)).reshape(len(x), -1)


def nearest(rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the known row that equals each row but for rounding."""
    apart = np.abs(rows[:, None] - known[None]).max(2)
    assert apart.min(1).max() < 1e-3 * np.abs(known).max()
    return apart.argmin(1)


def test_rows_and_classes_of_a_table(tmp_path: Path) -> None:
    data = TableClassesConfig(file=table(tmp_path, KINDS)).build(MLPConfig()).data
    assert data.units.classes == ("ant", "bee", "cow")
    found = nearest(in_units(data), ROWS)
    assert [data.units.classes[number] for number in data.test_y] == KINDS[found].tolist()
    assert data.describe().endswith("3 features, 3 classes of what (ant, bee, cow)")


def test_rows_and_numbers_of_a_table(tmp_path: Path) -> None:
    data = TableFileConfig(file=table(tmp_path, NUMBERS)).build(MLPConfig()).data
    found = nearest(in_units(data), ROWS)
    predicted = data.test_y.numpy() * data.units.target_std + data.units.target_mean
    assert predicted == pytest.approx(NUMBERS[found], rel=1e-4)
    told = in_and_out(data, data.inputs(data.test_x))
    assert told["target"] == {"name": "what", "mean": data.units.target_mean, "std": data.units.target_std}
    assert told["input"]["mean"] == data.units.mean


def test_images_and_classes(tmp_path: Path) -> None:
    images = RNG.normal(5000, 600, (60, 1, 8, 8))
    np.savez(tmp_path / "images.npz", x=images, y=KINDS)
    data = ImageArraysConfig(file=str(tmp_path / "images.npz")).build(CNNConfig()).data
    found = nearest(in_units(data), images.reshape(60, -1))
    assert data.units.classes is not None
    assert [data.units.classes[number] for number in data.test_y] == KINDS[found].tolist()
    np.savez(tmp_path / "images.npz", x=(images / 40).astype(np.uint8), y=np.arange(60) % 6 + 1)
    data = ImageArraysConfig(file=str(tmp_path / "images.npz")).build(CNNConfig()).data
    assert data.units == Units(classes=(1, 2, 3, 4, 5, 6)), "the scale of bytes is in mean and std"
    told = in_and_out(data, data.inputs(data.test_x))
    assert (told["classes"], len(told["input"]["mean"])) == ((1, 2, 3, 4, 5, 6), 1)
    assert "target" not in told
    assert data.describe().endswith("1x8x8 values each, 6 classes (1, 2, 3, 4, 5, ...)")
    np.savez(tmp_path / "images.npz", x=images, y=np.arange(60) % 6)
    assert ImageArraysConfig(file=str(tmp_path / "images.npz")).build(CNNConfig()).data.units.classes is None, "they are counted"


@pytest.mark.parametrize("kind", [torch.float32, torch.uint8])
def test_a_mean_and_deviation_scale_copies_and_leave_the_samples_as_they_are(kind: torch.dtype) -> None:
    x, y = (torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 255).to(kind), torch.arange(60) % 3
    sets = [(part.clone(), classes) for part, classes in zip(x.split(20), y.split(20), strict=True)]
    data = replace(Data.of_sets(sets, 3), mean=torch.full((1, 1, 1), 127.0), std=torch.full((1, 1, 1), 74.0))
    before = data.fingerprint()
    for _ in range(2):
        check_samples(data, Layout.IMAGES, batch_size=4)
        assert torch.allclose(data.inputs(data.valid_x[:5]), (x[20:25].float() - 127) / 74)
    assert data.fingerprint() == before
