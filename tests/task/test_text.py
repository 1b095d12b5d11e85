"""Language tasks: blocks, Python's standard library, and generated files of stories."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.hosts.transformer import TransformerConfig
from esper.task import python_text, tinystories
from esper.task.data import IGNORED, TaskError
from esper.task.instances import Instances, Split
from esper.task.loading import load_task
from esper.task.python_text import PythonTextConfig
from esper.task.text import blocks
from esper.task.tinystories import END, TOKENIZER_FILE, TRAIN_FILE, VALID_FILE, TinyStoriesConfig

# ---- blocks


@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 9), max_size=30), min_size=1, max_size=4),
    context=st.integers(1, 8),
)
def test_blocks_hold_every_prediction_once(texts, context):
    if all(len(text) < 2 for text in texts):
        with pytest.raises(ValueError, match="no text has two tokens"):
            blocks(texts, context, 7, 10)
        return
    x, y = blocks(texts, context, 7, 10)
    assert x.shape == y.shape
    assert x.shape[1] == context
    expected = Counter(tuple(text[place : place + 2]) for text in texts for place in range(len(text) - 1))
    seen = [pair for a, b in zip(x.tolist(), y.tolist(), strict=True) for pair in zip(a, b, strict=True) if pair[1] != IGNORED]
    assert Counter(seen) == expected
    for a, b in zip(x, y, strict=True):
        known = b != IGNORED
        assert known[0]
        assert (known[1:] <= known[:-1]).all()  # padding is at the end
        assert a[1:][known[:-1]].equal(b[:-1][known[:-1]])  # a target is the next input
        assert (a[1:][~known[:-1]] == 7).all()


def test_a_token_beyond_the_vocabulary_is_refused():
    with pytest.raises(TaskError, match="token 300 exceeds the vocabulary of 256"):  # as a byte it would be 44
        blocks([[1, 2, 300, 1]], 3, 0, 256)


# ---- python_text


@pytest.fixture
def sources(tmp_path, monkeypatch):
    monkeypatch.setattr(python_text, "LEAST", 1000)
    rng = np.random.default_rng(0)
    for number in range(20):
        (tmp_path / f"module{number}.py").write_bytes(bytes([97 + number]) * int(rng.integers(200, 400)))
    (tmp_path / "empty.py").write_bytes(b"")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "notes.txt").write_bytes(b"z" * 5000)
    return tmp_path


def text(root, **fields):
    return PythonTextConfig(root=str(root), epoch_samples=0, valid_samples=0, **fields)


def test_the_split_is_by_file_and_covers_all(sources):
    data = text(sources).build(TransformerConfig()).data
    letters = [set(part.flatten().tolist()) - {0, IGNORED} for part in (data.train_y, data.valid_y, data.test_y)]
    assert set().union(*letters) == {97 + number for number in range(20)}
    assert sum(map(len, letters)) == 20  # a file is in one part
    sizes = [int((part != IGNORED).sum()) for part in (data.train_y, data.valid_y, data.test_y)]
    assert sum(sizes) == sum(len(path.read_bytes()) - 1 for path in sources.glob("module*.py"))
    assert all(0.08 < size / sum(sizes) < 0.2 for size in sizes[1:])
    assert data.num_classes == 256
    again, other = text(sources).build(TransformerConfig()).data, text(sources, split_seed=1).build(TransformerConfig()).data
    assert again.train_x.equal(data.train_x)
    assert again.valid_x.equal(data.valid_x)
    assert not (other.train_x.shape == data.train_x.shape and other.train_x.equal(data.train_x))


def test_a_large_file_is_no_validation_set(sources):
    """It holds 40 % of the bytes; the split is by file."""
    (sources / "module_large.py").write_bytes(b"A" * 4000)
    for split_seed in range(20):
        data = text(sources, split_seed=split_seed).build(TransformerConfig()).data
        sizes = [int((part != IGNORED).sum()) for part in (data.train_y, data.valid_y, data.test_y)]
        assert sizes[0] > 0.6 * sum(sizes)
        assert min(sizes[1:]) > 0.07 * sum(sizes)


def test_standard_library_of_the_interpreter():
    data = PythonTextConfig().build(TransformerConfig()).data
    assert int((data.train_y != IGNORED).sum()) > 1_000_000
    assert data.valid_x.shape == (128, 32)
    sample = bytes(data.train_x[0].tolist()).decode("latin-1")
    assert sample.isprintable() or "\n" in sample


def test_too_little_text_is_refused(tmp_path):
    with pytest.raises(TaskError, match=r"needs at least 100000 bytes.* has 0 in 0: set task\.root"):
        text(tmp_path).build(TransformerConfig())


def test_lesioned_hosts_ignore_earlier_tokens(sources):
    task = text(sources).build(TransformerConfig())
    names = [(0, Split.TRAINING, 0, index) for index in range(20)]
    assert {task.describe(*name) for name in names} == {"oo", "xx"}
    for name in names[:6]:
        host, tokens = task.host(*name).eval(), task.data.valid_x[:1].long()
        with torch.no_grad():
            before = host(tokens)
            tokens[0, 0] += 1
            moved = (host(tokens) - before).abs().amax(-1)[0] > 0
        assert before.shape == (1, 32, 256)
        assert moved[0]
        assert moved[1:].any() == (task.describe(*name) != "xx")
    healthy = text(sources, instances=Instances.healthy, kinds=[]).build(TransformerConfig())
    assert {healthy.describe(*name) for name in names} == {"oo"}


def test_kinds_must_match_the_number_of_layers():
    with pytest.raises(
        ValueError, match=r"task\.kinds must name .* 2 letters o or x, one per layer \(host\.layers\), got \[xxx\]"
    ):
        PythonTextConfig(kinds=["xxx"]).check_host(TransformerConfig())


# ---- tinystories


@pytest.fixture
def stories(tmp_path):
    """Write files in the published format, and a tokenizer of whole words."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra tinystories is not installed")
    words = ["once", "upon", "a", "time", "there", "was", "cat", "dog", END, "?"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: rank for rank, word in enumerate(words)}, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / TOKENIZER_FILE))
    train = [f"once upon a time\nthere was a {'cat' if number % 2 else 'dog'}" for number in range(20)]
    (tmp_path / TRAIN_FILE).write_text(f"\n{END}\n".join([*train, "once upon a story that was cut o"]))
    (tmp_path / VALID_FILE).write_text("".join(f"there was a {word}\n{END}\n" for word in ["cat", "dog", "time", "cat cat"]))
    return tmp_path


TINY = TransformerConfig(layers=1, width=8, heads=2, context=6)


def tiny(root, **fields):
    return TinyStoriesConfig(root=str(root), epoch_samples=0, valid_samples=0, **fields)


def test_stories_become_padded_blocks(stories):
    task = tiny(stories, batch_size=2).build(TINY)
    data = task.data
    assert data.num_classes == 10
    assert data.train_x.shape == (40, 6)  # 8 words and the end, in blocks of 6 and 2 predictions
    assert data.train_x[:2].tolist() == [[0, 1, 2, 3, 4, 5], [2, 7, 8, 8, 8, 8]]
    assert data.train_y[:2].tolist() == [[1, 2, 3, 4, 5, 2], [7, 8, *[IGNORED] * 4]]
    assert len(data.valid_y) == len(data.test_y) == 2
    both = torch.cat([data.valid_x, data.test_x])
    assert sorted(both[:, 3].tolist()) == [3, 6, 6, 7]
    assert task.host(0, Split.TRAINING, 0, 0)(data.inputs(data.valid_x)).shape == (2, 6, 10)
    assert tiny(stories, stories=3, batch_size=2).build(TINY).data.train_x.shape == (6, 6)


def test_changed_stories_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(TinyStoriesConfig, "build", lambda config, host: object())  # which needs tokenizers
    (tmp_path / VALID_FILE).write_text("a cat")
    first = load_task(tiny(tmp_path), TINY)
    assert load_task(tiny(tmp_path), TINY) is first
    (tmp_path / VALID_FILE).write_text("a dog or two")
    assert load_task(tiny(tmp_path), TINY) is not first


@pytest.mark.parametrize("name", [TRAIN_FILE, VALID_FILE, TOKENIZER_FILE])
def test_a_missing_file_is_named(stories, name):
    (stories / name).unlink()
    with pytest.raises(TaskError, match=rf"needs .*{name}, which does not exist: .*download.*task\.root") as caught:
        tiny(stories).build(TINY)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"one story only\n", b"\xff\xfe once\n" + END.encode()])
@pytest.mark.parametrize("name", [TRAIN_FILE, VALID_FILE])
def test_a_damaged_file_is_named(stories, name, content):
    (stories / name).write_bytes(content)
    with pytest.raises(TaskError, match=rf"{name} is damaged"):
        tiny(stories).build(TINY)


def test_a_damaged_or_unsuitable_tokenizer_is_named(stories):
    path = stories / TOKENIZER_FILE
    content = json.loads(path.read_text())
    del content["model"]["vocab"][END]
    path.write_text(json.dumps(content))
    with pytest.raises(TaskError, match=r"tokenizer\.json has no token <\|endoftext\|>"):
        tiny(stories).build(TINY)
    path.write_text("{")
    with pytest.raises(TaskError, match=r"tokenizer\.json is damaged"):
        tiny(stories).build(TINY)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(tinystories.importlib, "import_module", absent)
    with pytest.raises(
        TaskError, match=r"needs the package tokenizers, which is not installed: pip install -c constraints.txt -e '\.\["
    ):
        tiny(tmp_path).build(TINY)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"stories": 0}, r"task\.stories must be at least 1, got 0"),
        ({"valid_stories": 1}, r"task\.valid_stories must be at least 2, got 1"),
    ],
)
def test_invalid_fields_are_refused(fields, rule):
    with pytest.raises(ValueError, match=rule):
        TinyStoriesConfig(**fields)
