"""Regression tasks: tables, their errors, and a run that people read as R2."""

import numpy as np
import pytest

from esper.growth.objective import Numbers, RegressionLoss
from esper.hosts.mlp import MLPConfig
from esper.notices import UserNotice
from esper.task.data import TaskError
from esper.task.diabetes import DiabetesConfig
from esper.task.loading import load_task
from esper.task.splits import scaled
from esper.task.table_file import TableFileConfig
from esper.telemetry.tags import in_terms_of
from tests.forked import run_forked

GOOD = "size,price,rooms\n" + "".join(f"{row % 7},{3 * row},{row % 3}\n" for row in range(40))


def table(folder, content=GOOD, **fields):
    (folder / "table.csv").write_text(content)
    return TableFileConfig(file=str(folder / "table.csv"), batch_size=8, **fields)


def test_tables_are_divided_and_scaled_by_the_training_set(tmp_path):
    data = table(tmp_path, target="price").load(0)
    assert [len(part) for part in (data.train_y, data.valid_y, data.test_y)] == [24, 8, 8]
    assert data.train_x.shape[1:] == (2, 1, 1)
    for part in (data.train_x.squeeze(), data.train_y):
        np.testing.assert_allclose(part.mean(0), 0, atol=1e-6)
        np.testing.assert_allclose(part.std(0, correction=0), 1, atol=1e-6)
    whole = np.concatenate([part.numpy() for part in (data.train_y, data.valid_y, data.test_y)])
    steps = np.diff(np.sort(whole))
    np.testing.assert_allclose(steps, steps[0], rtol=1e-3)  # prices rise by 3
    assert table(tmp_path).load(0).train_x.shape == (24, 2, 1, 1)
    assert not table(tmp_path, split_seed=1, target="price").load(0).valid_y.equal(data.valid_y)


@pytest.mark.parametrize(
    ("content", "fields", "message"),
    [
        (None, {}, "which does not exist: set task.file to a CSV file"),
        (
            "a|b\n1|2\n",
            {},
            "does not name two columns: set task.file to a CSV file of numbers whose first line names",
        ),
        ("a;b\n1,5;2\n1.5;3\n", {}, "line 2 of .* has '1,5' in column 'a': write numbers with a decimal point"),
        ("a;b\n1;x,5\n", {}, "line 2 of .* has 'x,5' in column 'b', which is not a finite number"),
        ("a,b,a\n1,2,3\n", {}, "two columns of .* have the name 'a': rename one of them"),
        ("a,b\n1,2\n3\n", {}, "line 3 of .* has 1 value, and the first line names 2 columns"),
        ("a,b\n1,x\n", {}, "line 2 of .* has 'x' in column 'b', which is not a finite number: correct it"),
        ('a,b\n"1,5",2\n', {}, "line 2 of .* has '1,5' in column 'a': write numbers with a decimal point"),
        ("a,b\n1,inf\n", {}, "line 2 of .* has 'inf' in column 'b', which is not a finite number"),
        (
            "a,b\nx,1\n",
            {},
            "has 'x' in column 'a', .*: encode .*; or, if it is the column to predict .now 'b'., set task.target=a",
        ),
        ("a,b\n1,2\n\n3, \n", {}, "line 4 of .* has no value in column 'b': fill it in, or remove the line"),
        ("a,b\n1,2\nNA,3\n", {}, r"line 3 of .* has no value in column 'a' \(NA\): fill it in, or remove the line"),
        ("a,b\n1,nan\n", {}, r"line 2 of .* has no value in column 'b' \(nan\): fill it in"),
        (",a,b\n0,1,2\n", {"target": "b"}, "column 1 of .* has no name: name it, or leave it out"),
        ("", {}, "does not name two columns: set task.file to a CSV file"),
        ("a,b\n", {}, "has no rows below the names of its columns: add some"),
        ("1.5,2,low\n2.5,3,high\n", {}, "the first line of .* holds numbers: add a line above it that names the columns"),
        ("a,b\n1,low\n", {}, "in column 'b', which is not a finite number: correct it, or use task=table_classes"),
        ("a,b\n1,2\n3,4\n", {}, "has 2 rows, and a division into three sets needs at least 8: add rows"),
        ("a,b\n" + "1,2\n" * 20, {}, "has the same target in every row, so there is nothing to predict"),
        (
            "a,b\n" + "1,2\n" * 39 + "1,3\n",
            {},
            "has equal targets in all rows of its [a-z]+ split, so R2 is undefined",
        ),
        (GOOD, {"target": "cost"}, "has no column 'cost': set task.target to one of size, price, rooms"),
        (GOOD, {"valid_samples": 1}, "task.valid_samples=1 leaves only equal targets, so R2 is undefined: raise it"),
    ],
)
def test_a_table_that_cannot_be_learnt_is_named_in_one_sentence(tmp_path, content, fields, message):
    config = table(tmp_path, content or "", **fields)
    if content is None:
        (tmp_path / "table.csv").unlink()
    with pytest.raises(TaskError, match=message) as found:
        load_task(config, MLPConfig())
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("separator", [";", "\t"])
@pytest.mark.parametrize("mark", [".", ","])
def test_other_separators_and_decimal_commas_are_read(tmp_path, separator, mark):
    rows = [f"{row % 7}.5,-{row}.25,{row % 3}" for row in range(40)]
    plain = "\n".join(["size,price,rooms", *rows])
    other = "\ufeff" + plain.replace(",", separator).replace(".", mark)
    found = table(tmp_path, other, target="price").load(0)
    assert found.fingerprint() == table(tmp_path, plain, target="price").load(0).fingerprint()


def test_names_of_columns_may_hold_other_separators(tmp_path):
    data = table(tmp_path, GOOD.replace("rooms", "rooms; heated"), target="rooms; heated").load(0)
    assert data.target == "rooms; heated"
    assert data.train_x.shape[1] == 2


def test_commas_that_may_separate_thousands_warn(tmp_path):
    content = "size;price\n" + "".join(f"1,{row:03d};{row}\n" for row in range(40))
    with pytest.warns(UserNotice, match=r"table.csv: commas are read as decimal, as in 1,000: if they separate thousands"):
        table(tmp_path, content).load(0)


def test_years_may_name_columns_with_a_warning(tmp_path):
    rows = "".join(f"{row},{row % 3},{row * row}\n" for row in range(40))
    with pytest.warns(
        UserNotice, match="holds numbers, which are taken as names of columns: if they are values, add names above"
    ):
        data = table(tmp_path, "2019,2020,price\n" + rows, target="price").load(0)
    assert data.describe() == "24 training, 8 validation and 8 test samples; 2 features, a number to predict (price)"


def test_folders_and_other_encodings_are_not_called_damaged(tmp_path):
    (tmp_path / "latin.csv").write_bytes("größe,price\n1,2\n".encode("latin-1"))
    for name in ("table.xlsx", "table.zip"):
        (tmp_path / name).write_bytes(b"PK\x03\x04\xff\xff")
    for name, message in (
        ("", "is a folder: set task.file to a CSV file"),
        ("latin.csv", "is not text in UTF-8: save it in that"),
        ("table.xlsx", "is not text in UTF-8: export it as CSV"),
        ("table.zip", "is not text in UTF-8: unpack it"),
    ):
        with pytest.raises(TaskError, match=message):
            TableFileConfig(file=str(tmp_path / name)).load(0)


def test_numbers_whose_deviation_is_too_small_for_a_float_are_only_shifted():
    column = np.array([[1e-200], [2e-200], [3e-170], [0.0]])
    assert np.isfinite(scaled(column, np.arange(4))[0]).all()
    assert scaled(column * 1e200, np.arange(4))[0].std() == pytest.approx(1)


def test_the_loss_is_chosen_by_name():
    assert DiabetesConfig().build_objective() == Numbers()
    assert DiabetesConfig(objective=RegressionLoss.huber, delta=0.3).build_objective() == Numbers(RegressionLoss.huber, 0.3)
    data = DiabetesConfig().load(0)
    assert [len(part) for part in (data.train_y, data.valid_y, data.test_y)] == [266, 88, 88]
    assert DiabetesConfig().build(MLPConfig()).chance_loss == pytest.approx(1.0, rel=1e-5)


def test_texts_about_accuracy_keep_their_keys():
    text = "Accuracy and accuracy_greedy of reward=accuracy_minus_rent; accuracies"
    assert in_terms_of("R2", text) == "R2 and R2_greedy of reward=accuracy_minus_rent; R2"
    assert in_terms_of("accuracy", text) == text


@pytest.mark.slow
def test_train_evaluate_and_compare_print_r2(tmp_path):
    """With informed seeds, pretrained hosts, drifts and streamed data along the way."""
    tiny = ["task=diabetes", "hosts=4", "steps=4", "updates=2", "gates.min_training=1", "gates.min_blending=1"]
    tiny += ["blueprint=[mlp_small]", "blueprint.mlp_small.init=informed", "optimiser.learning_rate=0.02"]
    tiny += ["telemetry.page_hosts=2"]
    drift = ["task.events.kinds=[noise]", "task.events.first=1", "task.events.last=2"]
    pretrained = ["task.pretrain=1", "task.pretrain_pool=2", "task.pretrain_folder=pool"]
    arms = {
        "squared": [
            "agent.hidden=8",
            "agent.minibatches=1",
            "agent.epochs=1",
            "devices.auto.resident=false",
            "telemetry.page_hosts=0",
        ],
        "huber": ["agent=random", "task.objective=huber", *drift, *pretrained, "counterfactuals.at_end=[shapley]"],
    }
    done = [run_forked("esper.train", *tiny, *own, f"hydra.run.dir={tmp_path}/{arm}", cwd=tmp_path) for arm, own in arms.items()]
    done.append(run_forked("esper.evaluate", "checkpoint=squared", "hosts=4", "controllers=[wait]", "online=true", cwd=tmp_path))
    done.append(run_forked("esper.compare", "squared", "huber", "hosts=4", "baselines=[wait]", cwd=tmp_path))
    for one in done:
        assert one.returncode == 0, one.stderr
    for text in [*(one.stdout for one in done), (tmp_path / "squared" / "report.html").read_text()]:
        assert "R2" in text
        assert "ccuracy" not in text
