"""Images and texts of the user's own: generated folders."""

import os
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from esper.hosts.cnn import CNNConfig
from esper.hosts.transformer import TransformerConfig
from esper.notices import UserNotice
from esper.task import image_folder
from esper.task.data import IGNORED, TaskError
from esper.task.image_folder import ImageFolderConfig
from esper.task.loading import load_task
from esper.task.text_folder import TextFolderConfig

# ---- images


def draw(path, colour, size=(12, 12), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)


def paint(top, count, first=0):
    """Draw images of two classes: red of strength 2 n for cats, green for dogs, where n is the number of the image."""
    for number in range(first, first + count):
        draw(top / "cat" / f"{number}.png", (2 * number, 0, 0))
        draw(top / "dog" / "more" / f"{number}.PNG", (0, 2 * number, 0))


def images(folder, **fields):
    return ImageFolderConfig(folder=str(folder), size=8, batch_size=4, **fields).build(CNNConfig()).data


def numbers(x, y):
    """Return the classes and numbers of images."""
    return {(int(kind), int(image[kind, 0, 0]) // 2) for image, kind in zip(x, y, strict=True)}


def test_links_are_followed_but_not_in_circles(tmp_path):
    paint(tmp_path / "elsewhere", 25)
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "linked").symlink_to(tmp_path / "elsewhere" / name)
        (tmp_path / "images" / name / "circle").symlink_to(tmp_path / "images" / name)
    (tmp_path / "images" / "cat" / "lost.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.warns(UserNotice, match=r"cat has 1 link to nowhere, such as lost.png: correct or remove such links"):
        data = images(tmp_path / "images")
    assert sum(len(getattr(data, f"{part}_y")) for part in ("train", "valid", "test")) == 50


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(tmp_path, mode):
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
        for number in range(10):
            image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
            image.paste((200, 200, 200, 255), (0, 0, 4, 8))
            image.convert(mode).save(tmp_path / kind / f"{number}.png", **({"transparency": 0} if mode == "P" else {}))
    data = images(tmp_path)
    assert data.train_x[:, :, :, :4].unique().tolist() == [200]
    assert data.train_x[:, :, :, 4:].unique().tolist() == [255]


def test_a_folder_of_classes_is_split_in_three(tmp_path):
    paint(tmp_path, 25, first=1)
    (tmp_path / ".cache").mkdir()
    draw(tmp_path / "cat" / ".thumbnails" / "1.png", (2, 0, 0))
    draw(tmp_path / "dog" / "._1.png", (0, 2, 0))
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    with pytest.warns(UserNotice, match=r"not read: 1 file \.txt: convert images to .png$"):
        data = images(tmp_path)
    assert data.train_x.shape == (40, 3, 8, 8)
    assert data.train_x.dtype == torch.uint8
    assert data.num_classes == 2
    sets = [numbers(getattr(data, f"{part}_x"), getattr(data, f"{part}_y")) for part in ("train", "valid", "test")]
    assert [len(one) for one in sets] == [40, 5, 5]
    assert set().union(*sets) == {(kind, number) for kind in (0, 1) for number in range(1, 26)}
    assert images(tmp_path).fingerprint() == data.fingerprint()
    assert images(tmp_path, split_seed=1).fingerprint() != data.fingerprint()


def test_a_new_image_deep_in_a_folder_is_noticed(tmp_path):
    paint(tmp_path, 9)
    config = ImageFolderConfig(folder=str(tmp_path), size=8, batch_size=4)
    first = load_task(config, CNNConfig())
    assert load_task(config, CNNConfig()) is first
    draw(tmp_path / "dog" / "more" / "later.png", (0, 255, 0))
    second = load_task(config, CNNConfig())
    assert second is not first
    draw(tmp_path / "cat" / "3.png", (255, 0, 0))
    os.utime(tmp_path / "cat" / "3.png", (1, 1))  # a copy that keeps an old time
    assert load_task(config, CNNConfig()) is not second


def test_sets_without_classes_are_not_taken_for_classes(tmp_path):
    for part in ("train", "val", "test"):
        draw(tmp_path / part / "1.png", (9, 0, 0))
    with pytest.raises(TaskError, match=r"has folders for sets, but .*train has none for classes"):
        images(tmp_path)


@pytest.mark.parametrize("valid", ["val", "valid", "validation"])
def test_folders_of_sets_are_kept_apart(tmp_path, valid):
    paint(tmp_path / "train", 20, first=1)
    paint(tmp_path / valid, 4, first=50)
    data = images(tmp_path)
    assert numbers(data.valid_x, data.valid_y) == {(kind, number) for kind in (0, 1) for number in range(50, 54)}
    assert [len(part) for part in (data.train_y, data.valid_y, data.test_y)] == [36, 8, 4]
    assert len(set(data.valid_y[:4].tolist())) == 2, "a task may cut the validation images: they are shuffled"
    paint(tmp_path / "test", 3, first=60)
    data = images(tmp_path)
    assert numbers(data.test_x, data.test_y) == {(kind, number) for kind in (0, 1) for number in range(60, 63)}
    assert len(data.train_y) == 40
    draw(tmp_path / "dev" / "cat" / "1.png", (9, 9, 9))
    with pytest.warns(UserNotice, match="not used: dev$"):
        assert images(tmp_path).fingerprint() == data.fingerprint()


@pytest.mark.parametrize(
    ("classes", "like"), [("bus train", "train"), ("Testing Train", "Testing, Train"), ("cat dog test", "test")]
)
def test_a_class_may_be_named_like_a_set(tmp_path, classes, like):
    for name in classes.split():
        for number in range(10):
            draw(tmp_path / name / f"{number}.jpg", (number, 0, 0))
    read = "are read as classes" if "," in like else "is read as a class"
    with pytest.warns(UserNotice, match=f": {like} {read}: if these are sets, name them train, val and test"):
        assert images(tmp_path).num_classes == len(classes.split())


def test_a_photo_is_read_upright(tmp_path):
    photo, exif = Image.new("RGB", (10, 10)), Image.Exif()
    photo.paste((255, 0, 0), (0, 0, 10, 5))
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    for name in "ab":
        for number in range(10):
            (tmp_path / name).mkdir(exist_ok=True)
            photo.save(tmp_path / name / f"{number}.png", exif=exif)
    red = images(tmp_path).train_x[0, 0].float()
    assert red[:, -1].mean() > 200 > 50 > red[:, 0].mean()


def test_few_images_are_decoded_ahead(monkeypatch):
    begun = []
    monkeypatch.setattr(image_folder, "FILES", 4)
    monkeypatch.setattr(image_folder, "_read", lambda path, size: begun.append(path))
    found = image_folder._images(list(range(10)), 8)
    next(found)
    assert len(begun) <= 4
    assert len(list(found)) == 9
    assert sorted(begun) == list(range(10))


def test_images_are_cropped_in_the_centre_and_resized(tmp_path):
    paint(tmp_path, 8)
    wide = np.zeros((20, 60, 3), dtype=np.uint8)
    wide[:, 20:40] = (7, 8, 9)  # the square in the centre
    Image.fromarray(wide).save(tmp_path / "cat" / "wide.png")
    draw(tmp_path / "cat" / "grey.png", (80, 80, 80), mode="L")
    draw(tmp_path / "cat" / "clear.png", (90, 91, 92), mode="RGBA")
    data = images(tmp_path)
    x = torch.cat([data.train_x, data.valid_x, data.test_x])
    seen = {tuple(image[:, 4, 4].tolist()) for image in x}
    assert not (x == 0).all(1).flatten(1).any(1)[(x[:, :, 4, 4] == torch.tensor([7, 8, 9])).all(1)], "the black sides are cut off"
    assert {(7, 8, 9), (80, 80, 80), (90, 91, 92)} <= seen


def break_image(top):
    (top / "cat" / "3.png").write_bytes((top / "cat" / "3.png").read_bytes()[:45])


def drop_class(top):
    for path in (top / "dog" / "more").iterdir():
        path.unlink()


def one_class(top):
    drop_class(top)
    (top / "dog" / "more").rmdir()
    (top / "dog").rmdir()


def few(top):
    for path in [*(top / "cat").iterdir(), *(top / "dog" / "more").iterdir()]:
        if path.stem > "1":
            path.unlink()


def unknown(top):
    draw(top / "train" / "cat" / "1.png", (1, 1, 1))
    draw(top / "train" / "dog" / "1.png", (1, 1, 1))
    draw(top / "val" / "owl" / "1.png", (1, 1, 1))


def deepen(top):
    Image.new("I;16", (12, 12), 40_000).save(top / "cat" / "3.png")


def deepen_colours(top):
    """Write a PNG of 16 bits per channel, which Pillow reads but cannot write."""
    header, rows = struct.pack(">IIBBBBB", 12, 12, 16, 2, 0, 0, 0), zlib.compress((b"\0" + bytes(12 * 6)) * 12)
    chunks = [(b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")]
    packed = (struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part)) for kind, part in chunks)
    (top / "cat" / "3.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(packed))


def deepen_ppm(top):
    (top / "cat" / "3.ppm").write_bytes(b"P6 12 12 65535\n" + bytes(12 * 12 * 6))


def twice(top):
    (top / "val").mkdir()
    (top / "validation").mkdir()


def flat(top):
    paint(top / "train", 12)
    draw(top / "test" / "1.png", (1, 1, 1))


def rare(top):
    for number in range(2):
        draw(top / "owl" / f"{number}.png", (1, 1, 1))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (deepen, r"3\.png has more than 8 bits per channel: save it with 8"),
        (deepen_colours, r"3\.png has more than 8 bits per channel"),
        (deepen_ppm, r"3\.ppm has more than 8 bits per channel"),
        (twice, r"has both val and validation: keep one"),
        (flat, r"test has no folders of classes: put the images of each class into a subfolder, or move test out of"),
        (
            rare,
            r"has fewer than 3 images of class 'owl', too few for training, validation and testing: add images",
        ),
        (break_image, r"3\.png is damaged \(.+\): replace or remove it"),
        (drop_class, r"dog has no image \(\.jpg, .*\): remove it, or add images"),
        (one_class, r"needs a subfolder of images for each of at least two classes, and .* has 1: put"),
        (few, r"has too few images: add some, to have at least ten for training"),
        (unknown, r"owl is a class without training images: remove it"),
    ],
)
def test_an_unsuitable_folder_of_images_is_one_sentence(tmp_path, change, sentence):
    paint(tmp_path, 12)
    change(tmp_path)
    with pytest.raises(TaskError, match=sentence) as caught:
        images(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_class_of_one_image_trains_where_no_set_is_split_off(tmp_path):
    for name in ("train", "val", "test"):
        paint(tmp_path / name, 12)
    draw(tmp_path / "train" / "owl" / "1.png", (1, 1, 1))
    data = images(tmp_path)
    assert (data.train_y == 2).sum() == 1
    assert data.num_classes == 3
    os.rename(tmp_path / "val", tmp_path / "val_unused")
    with pytest.raises(TaskError, match="has fewer than 2 images of class 'owl', too few for training and validation"):
        images(tmp_path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(TaskError, match=r"needs .*absent, which does not exist: set task\.folder to a folder with"):
        images(tmp_path / "absent")
    with pytest.raises(TaskError, match=r"task\.folder=.*absent is not a folder: set it to"):
        text(tmp_path / "absent")


# ---- texts


def text(folder, **fields):
    config = TextFolderConfig(folder=str(folder), epoch_samples=0, **{"valid_samples": 0, **fields})
    return config.build(TransformerConfig()).data


@pytest.fixture
def texts(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(20):
        path = tmp_path / f"part{number % 3}" / f"{number}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([97 + number]) * int(rng.integers(1000, 2000)))
    (tmp_path / "a.txt").write_bytes(b"z" * 5000)
    (tmp_path / "folder.md").mkdir()
    (tmp_path / ".checkpoints").mkdir()
    (tmp_path / ".checkpoints" / "hidden.md").write_bytes(b"{" * 1000)
    return tmp_path


def test_texts_are_split_by_file(texts):
    data = text(texts, pattern="*.md")
    letters = [set(part.flatten().tolist()) - {IGNORED} for part in (data.train_y, data.valid_y, data.test_y)]
    assert sorted(letter for part in letters for letter in part) == list(range(97, 117))  # a file is in one part
    assert [2 <= len(part) <= 4 for part in letters[1:]] == [True, True]
    assert text(texts, pattern="*.md").fingerprint() == data.fingerprint()
    assert text(texts, pattern="*.md", split_seed=1).fingerprint() != data.fingerprint()
    assert 122 in text(texts, pattern="*").train_y.unique().tolist() + text(texts, pattern="*").valid_y.unique().tolist()


@pytest.mark.parametrize("split_seed", range(4))
def test_large_texts_are_learned_from_rather_than_held_out(texts, split_seed):
    (texts / "b.md").write_bytes(b"y" * 200_000)
    data = text(texts, pattern="*.md", split_seed=split_seed)
    assert len(data.train_y) > max(len(data.valid_y), len(data.test_y))


@pytest.mark.parametrize("sizes", [(100, 200, 20_000), (4000, 6000, 10_000), (50, 3000, 3000, 9000)])
def test_few_texts_of_any_size_are_divided(tmp_path, sizes):
    for name, size in zip("abcd", sizes, strict=False):
        (tmp_path / f"{name}.txt").write_bytes(name.encode() * size)
    for split_seed in range(4):
        data = text(tmp_path, split_seed=split_seed)
        letters = [set(part.flatten().tolist()) - {IGNORED} for part in (data.train_y, data.valid_y, data.test_y)]
        assert sorted(letter for part in letters for letter in part) == list(range(97, 97 + len(sizes)))
        assert all(letters)
        assert len(data.train_y) * 32 >= sum(sizes) / 4


def test_three_texts_of_one_size_are_enough(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_bytes(name.encode() * 4000)
    data = text(tmp_path)
    assert len(data.train_y) == len(data.valid_y) == len(data.test_y)


@pytest.mark.parametrize(("valid_samples", "needed"), [(0, 10_000), (128, 40_960)])
def test_too_few_texts_are_refused(texts, tmp_path, valid_samples, needed):
    with pytest.raises(
        TaskError,
        match=rf"at least {needed} bytes in three files, and task\.folder=.* has 5000 in 1 that match task\.pattern=\*\.txt:",
    ):
        text(texts, valid_samples=valid_samples)
    for number in range(20):
        (tmp_path / f"{number}.enough").write_bytes(b"a" * (needed // 20))
    text(texts, pattern="*.enough", valid_samples=valid_samples)
