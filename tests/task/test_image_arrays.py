"""Images of the user's own in .npz files."""

import numpy as np
import pytest
import torch

from esper.hosts.cnn import CNNConfig
from esper.notices import UserNotice
from esper.task.data import TaskError
from esper.task.image_arrays import ImageArraysConfig

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (60, 3, 12, 12), dtype=np.uint8)
Y = np.arange(60) % 3
SPLIT = {"train_x": X[:30], "train_y": Y[:30], "test_x": X[30:45], "test_y": Y[30:45], "valid_x": X[45:], "valid_y": Y[45:]}
MEDMNIST = {"train_x": "train_images", "train_y": "train_labels", "test_x": "test_images", "test_y": "test_labels"}
MEDMNIST |= {"valid_x": "val_images", "valid_y": "val_labels"}


def data(folder, arrays, **fields):
    path = folder / "images.npz"
    np.savez(path, **arrays)
    return ImageArraysConfig(file=str(path), batch_size=4, **fields).build(CNNConfig()).data


def same(one, other):
    return one.fingerprint() == other.fingerprint()


def test_images_and_classes_are_split(tmp_path):
    whole = data(tmp_path, {"x": X, "y": Y})
    assert [len(getattr(whole, f"{part}_y")) for part in ("train", "valid", "test")] == [36, 12, 12]
    x = torch.cat([whole.train_x, whole.valid_x, whole.test_x])
    y = torch.cat([whole.train_y, whole.valid_y, whole.test_y])
    places = [next(place for place in range(60) if (X[place] == image).all()) for image in x.numpy()]
    assert sorted(places) == list(range(60))
    assert y.tolist() == Y[places].tolist()
    mean = X[places[:36]].mean((0, 2, 3))
    assert whole.mean.flatten().tolist() == pytest.approx(mean.tolist(), rel=1e-6)
    assert same(whole, data(tmp_path, {"x": X, "y": Y}))
    assert not same(whole, data(tmp_path, {"x": X, "y": Y}, split_seed=1))


@pytest.mark.parametrize(
    "rename", [lambda name: name, lambda name: "_".join(reversed(name.split("_"))), lambda name: MEDMNIST[name]]
)
def test_sets_are_kept_by_any_common_name(tmp_path, rename):
    found = data(tmp_path, {rename(name): array for name, array in SPLIT.items()})
    assert found.test_x.equal(torch.from_numpy(SPLIT["test_x"]))
    assert found.valid_y.equal(torch.from_numpy(SPLIT["valid_y"]))
    assert sorted(map(bytes, found.train_x.numpy())) == sorted(map(bytes, SPLIT["train_x"]))
    without = {name: array for name, array in SPLIT.items() if "valid" not in name}
    found = data(tmp_path, {rename(name): array for name, array in without.items()})
    assert [len(getattr(found, f"{part}_y")) for part in ("train", "valid", "test")] == [27, 3, 15]


def test_a_part_of_a_sorted_validation_set_has_all_classes(tmp_path):
    order = np.argsort(SPLIT["valid_y"], kind="stable")
    ordered = SPLIT | {"valid_x": SPLIT["valid_x"][order], "valid_y": SPLIT["valid_y"][order]}
    found = data(tmp_path, ordered, valid_samples=len(order) // 2)
    assert found.valid_y.unique().tolist() == np.unique(Y).tolist()
    whole = data(tmp_path, ordered)
    assert whole.valid_y.equal(torch.from_numpy(ordered["valid_y"])), "a whole set keeps its order"


def test_layouts_types_and_names_of_classes_make_no_difference(tmp_path):
    plain = data(tmp_path, SPLIT)
    assert same(plain, data(tmp_path, SPLIT | {"train_x": X[:30].transpose(0, 2, 3, 1)}))
    assert same(plain, data(tmp_path, SPLIT | {"train_y": Y[:30, None].astype(np.uint8)}))
    assert same(plain, data(tmp_path, SPLIT | {"train_y": Y[:30].astype(float)}))
    words = {name: np.array(["ant", "bee", "cow"])[array] for name, array in SPLIT.items() if name.endswith("y")}
    assert same(plain, data(tmp_path, SPLIT | words))
    shifted = {name: array + 5 for name, array in SPLIT.items() if name.endswith("y")}
    assert same(plain, data(tmp_path, SPLIT | shifted))
    grey = data(tmp_path, {name: array[:, 0] if name.endswith("x") else array for name, array in SPLIT.items()})
    assert grey.test_x.shape == (15, 1, 12, 12)
    numbers = data(tmp_path, {name: 7.0 * array if name.endswith("x") else array for name, array in SPLIT.items()})
    torch.testing.assert_close(numbers.inputs(numbers.test_x), plain.inputs(plain.test_x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", [(12, 12, 2), (10, 14, 13), (12, 1, 3), (12, 4, 1)])
def test_the_axis_of_channels_is_asked_for_where_it_is_not_plain(tmp_path, shape):
    x = RNG.integers(0, 256, (60, *shape), dtype=np.uint8)
    plain = (shape[0] in (1, 3, 4)) != (shape[2] in (1, 3, 4))
    last = data(tmp_path, {"x": x, "y": Y}, channels="last")
    assert last.train_x.shape[1:] == (shape[2], *shape[:2])
    if plain:
        assert same(last, data(tmp_path, {"x": x, "y": Y}))
        return
    with pytest.raises(TaskError, match=r"add task\.channels=first for"):
        data(tmp_path, {"x": x, "y": Y})


def test_numbers_of_any_type_are_scaled_channel_by_channel(tmp_path):
    x = X.astype(np.float64) * np.array([1e-9, 1.0, 1e9])[:, None, None]
    found = data(tmp_path, {"x": x, "y": Y})
    assert found.train_x.std((0, 2, 3)).tolist() == pytest.approx([1, 1, 1], rel=1e-3)
    assert same(found, data(tmp_path, {"x": x.astype(">f8"), "y": Y.astype(">i4")}))
    data(tmp_path, {"x": X.astype(np.longdouble), "y": Y})
    x = np.full(X.shape, 0.1)  # whose standard deviation is rounded to 1e-17
    x[0] = 0.2
    assert data(tmp_path, {"x": x, "y": Y}).test_x.abs().max() <= 1, "a constant channel is only shifted"
    data(tmp_path, {"x": X > 127, "y": Y})


def test_arrays_that_are_not_used_are_named(tmp_path):
    with pytest.warns(UserNotice, match="images.npz: not used: names, x_dev"):
        found = data(tmp_path, SPLIT | {"names": np.array(["ant", None]), "x_dev": X})
    assert same(found, data(tmp_path, SPLIT))
    with pytest.warns(UserNotice, match="images.npz: not used: images, labels, valid_x$"):
        data(tmp_path, {name: array for name, array in SPLIT.items() if name != "valid_y"} | {"images": X, "labels": Y})


def test_a_constant_channel_of_bytes_is_not_scaled(tmp_path):
    """As the opacity of a picture: a change of it, such as a crop with a black margin, must not become an input of 1e8."""
    x = np.concatenate([X, np.full_like(X[:, :1], 255)], axis=1)
    found = data(tmp_path, {"x": x, "y": Y})
    assert found.std.flatten()[3] == 1
    assert found.inputs(torch.zeros_like(found.test_x)).abs().max() <= 255


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"pictures": X}, "needs the arrays x and y, or train_x.* and has pictures: rename them"),
        ({"x": X[:, :, 0, 0], "y": Y}, r"images of shape \[60, 3\], not .*use task=table_classes"),
        ({"x": X, "y": Y[:50]}, r"60 images and classes of shape \[50\]: give one class per image"),
        ({"x": X, "y": np.eye(3)[Y]}, r"classes of shape \[60, 3\]: give one class per image"),
        ({"x": X, "y": Y / 2}, "classes that are neither whole numbers nor text"),
        ({"x": X, "y": np.where(Y > 1, np.inf, Y)}, "classes that are neither whole numbers nor text"),
        ({"x": np.full(X.shape, np.nan), "y": Y}, "images with NaN or infinite values"),
        ({"x": 1e300 * X, "y": Y}, "values too large to be scaled: divide them"),
        ({"x": X.astype(str), "y": Y}, "images of type <U3: give numbers"),
        ({"x": X, "y": 0 * Y}, "has one class, and learning needs two"),
        ({"x": X, "y": np.arange(60)}, "has 60 different classes, more than half as many as images"),
        ({"x": X[:5], "y": Y[:5]}, "has 5 images, too few for three sets: add some"),
        (SPLIT | {"test_y": Y[30:45] + 1}, "the test set has class 3, which has no training image"),
        (SPLIT | {"valid_x": X[:0], "valid_y": Y[:0]}, "valid has no images: add some"),
        ({name: SPLIT[name] for name in SPLIT if "test" not in name}, "has no test set: add test_x and test_y"),
        ({"x": X, "y": Y, "test_x": X, "test_y": Y}, "has test_x and no train_x and train_y: add them"),
        ({"x": X, "y": np.array(["a", "b", None] * 20)}, r"y holds Python objects: save it as text, as in y.astype\(str\)"),
        ({"x": X.astype(object), "y": Y}, r"x holds Python objects: save it as numbers, as in np.stack"),
        (SPLIT | {"valid_x": SPLIT["valid_x"][:, :, 1:]}, "valid_x has images of 3x11x12 values, .* have 3x12x12: resize them"),
        ({"x": X, "y": np.array([b"ant", b"b\xe4r", b"cow"])[Y]}, r"not text in UTF-8: .*, as in np.char.decode\(y, 'latin-1'\)"),
        (
            {"x": X, "y": np.array([b"ant"] * 2 + [b"dog"] * 58)},
            "fewer than 3 images of class 'ant', too few for training",
        ),
        (
            {name: SPLIT[name] for name in SPLIT if "valid" not in name} | {"train_y": np.array([0, 1, *[2] * 28])},
            "fewer than 2 images of class 0, too few for training and validation: add images of this class, or remove it",
        ),
        (
            SPLIT | {"test_y": SPLIT["test_y"].astype(str)},
            "the classes of the test set are text, and those of the train set numbers",
        ),
        (
            SPLIT | {"test_x": SPLIT["test_x"] / 255},
            "training images are bytes, and the test set has other numbers: use one type and scale",
        ),
    ],
)
def test_unfit_arrays_are_refused_in_one_sentence(tmp_path, arrays, words):
    with pytest.raises(TaskError, match=words) as error:
        data(tmp_path, arrays)
    assert "\n" not in str(error.value)


def test_a_split_without_training_images_of_a_class_names_the_key(tmp_path):
    arrays = {"x": X, "y": np.array(["ant"] * 3 + ["dog"] * 57)}
    refusals = list[str]()
    for split_seed in range(60):
        try:
            assert data(tmp_path, arrays, split_seed=split_seed).num_classes == 2
        except TaskError as error:
            refusals.append(str(error))
    assert 0 < len(refusals) < 15
    assert all("has no training image of class 'ant' in this split" in one and "task.split_seed" in one for one in refusals)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04cut"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "images.npz").write_bytes(content)
    with pytest.raises(TaskError, match=r"images.npz is damaged \(it is not an .npz archive\): set task.file to"):
        ImageArraysConfig(file=str(tmp_path / "images.npz")).build(CNNConfig())


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(TaskError, match=r"is a folder, and the task needs a file: set task.file to an .npz file"):
        ImageArraysConfig(file=str(tmp_path)).build(CNNConfig())


def test_a_single_array_is_no_archive(tmp_path):
    np.save(tmp_path / "images.npy", X)
    with pytest.raises(TaskError, match=r"images.npy holds a single array: .*np.savez\('images.npz', x=x, y=y\)"):
        ImageArraysConfig(file=str(tmp_path / "images.npy")).build(CNNConfig())


def test_an_axis_that_is_not_there_is_told(tmp_path):
    with pytest.warns(UserNotice, match=r"^task.channels=last has no effect on images without an axis of channels$"):
        data(tmp_path, {"x": X[:, 0], "y": Y}, channels="last")
