"""Tables whose rows belong to classes, and the warning where a regression was not meant."""

import numpy as np
import pytest
import torch

from esper.cli.overrides import check
from esper.cli.readiness import ready
from esper.config import ConfigError
from esper.hosts.mlp import MLPConfig
from esper.notices import UserNotice
from esper.seeding import stream
from esper.task.data import TaskError
from esper.task.events import EventsConfig, class_shares
from esper.task.instances import Split
from esper.task.loading import load_task
from esper.task.splits import split_rows
from esper.task.table_classes import TableClassesConfig
from esper.task.table_file import TableFileConfig

ROWS = [(row, row % 4, ("no", "yes", "perhaps")[row % 3]) for row in range(60)]


def csv(folder, rows=ROWS, kind=TableClassesConfig, **fields):
    (folder / "t.csv").write_text("size,rooms,sold\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows))
    return kind(file=str(folder / "t.csv"), batch_size=8, **fields)


def test_a_column_that_is_constant_up_to_rounding_is_constant(tmp_path):
    """0.3 as it is written, and as a sum of 0.1 and 0.2: such a deviation would make 1e13 of another value."""
    rows = [(row, 0.31 if row == 3 else (0.3, 0.1 + 0.2)[row % 2], "ab"[row % 2]) for row in range(60)]
    for split_seed in range(8):
        data = csv(tmp_path, rows, split_seed=split_seed).load(0)
        assert max(float(part.abs().max()) for part in (data.train_x, data.valid_x, data.test_x)) < 10


@pytest.mark.parametrize("kind", [TableClassesConfig, TableFileConfig])
def test_a_column_that_is_constant_in_the_training_rows_only_is_told(tmp_path, recwarn, kind):
    train = split_rows(60, stream(0, "table_split"), "")["train"]
    for row, warns in ((train[0], False), (next(row for row in range(60) if row not in train), True)):
        rows = [(number % 7, 5000 if number == row else 0, number % 5) for number in range(60)]
        csv(tmp_path, rows, kind).load(0)
        messages = [told for one in recwarn.list if (told := str(one.message).partition("t.csv: ")[2])]
        assert [message[:57] for message in messages] == ["constant in the training rows only: rooms: hosts learn no"] * warns


@pytest.mark.parametrize("cell", ["1_000", "３"])
def test_numbers_are_those_of_other_programs(tmp_path, cell):
    rows = [(row, cell if row == 5 else row % 3, "ab"[row % 2]) for row in range(60)]
    with pytest.raises(TaskError, match=f"has '{cell}' in column 'rooms'"):
        csv(tmp_path, rows).load(0)


def test_every_row_keeps_its_class(tmp_path):
    data = csv(tmp_path).load(0)
    assert data.num_classes == 3
    parts = [(data.train_x, data.train_y), (data.valid_x, data.valid_y), (data.test_x, data.test_y)]
    assert [len(y) for _, y in parts] == [36, 12, 12]
    x, y = (np.concatenate([part[axis].numpy() for part in parts]) for axis in (0, 1))
    size = x[:, 0, 0, 0]
    order = size.argsort()  # the rows of the file, since size counts them
    assert y[order].tolist() == [(0, 2, 1)[row % 3] for row in range(60)]  # no, perhaps, yes: in alphabetical order
    assert np.abs(data.train_x.numpy().mean(0)).max() < 1e-6


def test_a_file_that_has_changed_is_read_again(tmp_path):
    """Data is loaded once per process, which may be a notebook."""
    config = csv(tmp_path)
    first = load_task(config, MLPConfig())
    assert load_task(config, MLPConfig()) is first
    csv(tmp_path, ROWS[:40])
    assert load_task(config, MLPConfig()).data.fingerprint() != first.data.fingerprint()


def test_blanks_around_names_make_no_class(tmp_path):
    plain = csv(tmp_path).load(0)
    blank = csv(tmp_path, [(size, f" {rooms}", f"{sold} " if size % 2 else sold) for size, rooms, sold in ROWS]).load(0)
    assert plain.fingerprint() == blank.fingerprint()
    assert plain.describe() == "36 training, 12 validation and 12 test samples; 2 features, 3 classes of sold (no, perhaps, yes)"


def test_a_column_in_the_middle_may_hold_the_classes(tmp_path):
    rows = [(row, "ab"[row % 2], row % 7) for row in range(40)]
    data = csv(tmp_path, rows, target="rooms").load(0)
    assert (data.num_classes, data.train_x.shape) == (2, (24, 2, 1, 1))


def test_a_small_share_of_few_rows_leaves_at_least_one(tmp_path):
    """Of 36 rows, 12 per class, 1 % of the older classes remains while a class begins to arrive."""
    events = EventsConfig(kinds=["arrive"], count=[1], first=1, last=9, group=1, ramp=[19], replay=0.01)
    task = csv(tmp_path, events=events).build(MLPConfig())
    ranks, lone = task.data.domains.train_presence, 0
    for index in range(40):
        view = task.view(0, Split.TRAINING, 0, index)
        for epoch in range(12):
            pool, share_K = task.pool(view, epoch), class_shares(view.timetable, epoch, 3, 0.01)
            share = torch.from_numpy(share_K)[task.data.train_y[pool].long()]
            assert len(pool)
            assert (share > 0).all(), "none of a class that has not arrived"
            lone += int((ranks[pool] >= share).all())
            assert (ranks[pool] < share).all() or len(pool) == 1
    assert lone > 0


def test_a_quote_that_nobody_closes_is_named_with_its_line(tmp_path):
    rows = [(row, '"open' if row == 3 else 1, "a long text" * 999) for row in range(40)]
    with pytest.raises(TaskError, match=r"t\.csv cannot be read from line 5 on \(field larger than .*\): close its quotes"):
        csv(tmp_path, rows).load(0)


@pytest.mark.parametrize(
    ("rows", "fields", "message"),
    [
        ([(row, 1, "a") for row in range(20)], {}, "column sold of .* has the same class in every row"),
        ([(row, 1, row) for row in range(20)], {}, "has 20 different values in 20 rows, which are hardly classes"),
        (
            [(row, "x", "ab"[row % 2]) for row in range(20)],
            {},
            "line 2 of .* has 'x' in column 'rooms', .*predict .now 'sold'., set task.target=rooms",
        ),
        ([(row, "?", "ab"[row % 2]) for row in range(20)], {}, r"has no value in column 'rooms' \(\?\): fill it in, or remove"),
        ([(row, 1, "ab"[row % 2]) for row in range(6)], {}, "has 6 rows, and a division into three sets needs at least 8"),
        ([*ROWS, (1, 2, "rare")], {}, "has fewer than 3 rows of class 'rare', too few for training, validation and testing"),
        ([*ROWS, (1, 2, " ")], {}, "line 62 of .* has no value in column 'sold'"),
        (ROWS, {"target": "price"}, "has no column 'price': set task.target to one of size, rooms, sold"),
    ],
)
def test_what_is_no_table_of_classes_is_named_in_one_sentence(tmp_path, rows, fields, message):
    with pytest.raises(TaskError, match=message) as found:
        csv(tmp_path, rows, **fields).load(0)
    assert "\n" not in str(found.value)


def test_a_class_without_training_rows_is_named(tmp_path):
    alone = split_rows(30, stream(0, "table_split"), "")["test"][:3]
    rows = [(row, 1, "rare" if row in alone else "ab"[row % 2]) for row in range(30)]
    with pytest.raises(TaskError, match=r"column sold of .* has no training row of class 'rare' in this split: .*split_seed"):
        csv(tmp_path, rows).load(0)
    assert csv(tmp_path, rows, split_seed=4).load(0).num_classes == 3


def test_decimal_commas_of_features_are_read_and_classes_stay(tmp_path):
    rows = [f"{size},5;{rooms};{'1,5' if sold == 'no' else '2,5'}" for size, rooms, sold in ROWS]
    (tmp_path / "t.csv").write_text("size;rooms;sold\n" + "\n".join(rows))
    found = TableClassesConfig(file=str(tmp_path / "t.csv"), batch_size=8).load(0)
    plain = csv(tmp_path, [(size + 0.5, rooms, "a" if sold == "no" else "b") for size, rooms, sold in ROWS]).load(0)
    assert found.units.classes == ("1,5", "2,5")
    assert found.fingerprint() == plain.fingerprint()


def test_a_column_that_counts_the_rows_warns(tmp_path):
    rows = [(row + 7, row * row, "ab"[row % 2]) for row in range(30)]
    with pytest.warns(UserNotice, match=r"t.csv: counts the rows: size: leave such a column out, unless it is a measurement"):
        csv(tmp_path, rows).load(0)


def test_a_class_named_like_a_missing_value_warns(tmp_path):
    rows = [(size, rooms, "N/A" if sold == "no" else sold) for size, rooms, sold in ROWS]
    with pytest.warns(UserNotice, match="column sold of .* has the class 'N/A': if it marks missing values, remove these rows"):
        assert csv(tmp_path, rows).load(0).num_classes == 3


def test_a_regression_on_few_whole_numbers_warns(tmp_path):
    rows = [(row, row % 4, row % 2) for row in range(40)]
    with pytest.warns(UserWarning, match="column sold of .* holds 2 different whole numbers: if they are classes, use"):
        csv(tmp_path, rows, kind=TableFileConfig).load(0)


def test_hosts_of_a_table_are_read_by_an_mlp_and_refused_by_a_cnn(tmp_path):
    config = csv(tmp_path)
    assert config.build(MLPConfig()).data.num_classes == 3
    chosen = check([f"task.file={config.file}", "task=table_classes", "host=cnn", "blueprint=[norm]", "task.batch_size=8"])
    with pytest.raises(ConfigError, match="for rows of numbers, host=mlp 'blueprint="):
        ready(chosen)
