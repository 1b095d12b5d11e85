"""Grown networks in files: they compute the same, in a process that never imports Esper."""

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from esper.cli.overrides import check
from esper.config import ConfigError
from esper.evaluation import exported
from esper.evaluation.exported import _error
from esper.export import ExportConfig, main
from esper.files import DiskError
from esper.growth.grown import GrownNetwork, KeptSeed
from esper.hosts.base import slot_specs
from esper.hosts.cnn import CNNConfig
from esper.hosts.mlp import MLPConfig
from esper.hosts.transformer import TransformerConfig
from esper.lifecycle.roles import Blend
from esper.seeds.bank import seed_module
from esper.seeds.blueprints.registry import BLUEPRINTS
from esper.training.trainer import Trainer

Writer = Callable[[str, str], tuple[Path, float]]

READ = {
    "pytorch": "from network import load; network = load()",
    "export": "network = torch.export.load('network.pt2').module()",
    "safetensors": "from safetensors.torch import load_file; from network import Network; "
    "network = Network(load_file('weights.safetensors')).eval()",
    "onnx": "import onnxruntime; session = onnxruntime.InferenceSession('network.onnx'); "
    "network = lambda x: torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])",
}
"""How a user reads each format."""
READER = """
import ast, os, sys, torch
for folder, code in ast.literal_eval(sys.argv[1]):
    os.chdir(folder)
    sys.path[0] = os.getcwd()
    sys.modules.pop("network", None)
    names = {"torch": torch}
    exec(code, names)
    torch.save(names["network"](torch.load("samples.pt")), "outputs.pt")
    assert not [name for name in sys.modules if name.split(".")[0] == "esper"], folder
"""
"""Reads networks in one process, the formats without a library first."""
NEEDS = {"pytorch": "torch", "export": "torch", "safetensors": "safetensors", "onnx": "onnxruntime"}
HOSTS: dict[str, tuple[Any, tuple[int, ...], int, dict[int, tuple[str, Blend]]]] = {
    "cnn": (
        CNNConfig(),
        (1, 8, 8),
        10,
        {0: ("conv_light", Blend.ADD), 1: ("norm", Blend.MULTIPLY), 2: ("depthwise", Blend.GATE)},
    ),
    "mlp": (MLPConfig(), (5, 1, 1), 3, {0: ("mlp_small", Blend.GATE)}),
    "transformer": (TransformerConfig(), (16,), 20, {0: ("norm", Blend.ADD), 1: ("mlp_small", Blend.MULTIPLY)}),
}
"""Config, shape of a sample, number of classes, and the seeds by slot."""


def grown(kind: str) -> tuple[GrownNetwork, Tensor]:
    """Return a network with seeds whose weights are no longer those of birth, and samples."""
    torch.manual_seed(0)
    host_config, shape, classes, chosen = HOSTS[kind]
    host = host_config.build(shape, classes, [False] * host_config.num_parts())
    slots = slot_specs(host)
    seeds = [KeptSeed(slot=slot, blueprint=0, blend=blend, alpha=1.0) for slot, (_, blend) in chosen.items()]
    branches = [seed_module(BLUEPRINTS[name](), slots[slot], gated=blend is Blend.GATE) for slot, (name, blend) in chosen.items()]
    with torch.no_grad():
        for parameter in (parameter for branch in branches for parameter in branch.parameters()):
            parameter.add_(0.3 * torch.randn_like(parameter))
        for layer in host.modules():
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.running_mean is not None
                layer.running_mean.normal_()
    samples = torch.randint(classes, (5, *shape)) if len(shape) == 1 else torch.randn(5, *shape)
    return GrownNetwork(host, branches, seeds), samples


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """Return a function that writes a network once, and returns the folder and the error of its outputs."""

    @cache
    def write(kind: str, form: str) -> tuple[Path, float]:
        (network, samples), folder = grown(kind), tmp_path_factory.mktemp(f"{kind}_{form}")
        return folder, exported.write(network, samples, folder, form, {"host": 3})

    return write


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        pytest.param(kind, form, marks=pytest.mark.slow if form == "onnx" else ())
        for kind, form in product(HOSTS, exported.FORMATS)
        if (kind, form) != ("mlp", "export")
    ],
)
def test_files_compute_the_same_without_esper(kind: str, form: str, written: Writer) -> None:
    pytest.importorskip(NEEDS[form], reason="pip install -e '.[export]'")
    folder, error = written(kind, form)
    assert error <= exported.TOLERANCE
    assert json.loads((folder / "topology.json").read_text()) == {"host": 3}


@pytest.mark.slow
def test_a_process_that_never_imports_esper_reads_them(written: Writer, tmp_path: Path) -> None:
    cases = [(kind, form) for kind in HOSTS for form in READ if find_spec(NEEDS[form]) and (kind == "cnn" or form == "pytorch")]
    code, expected = list[tuple[str, str]](), dict[str, Tensor]()
    for kind, form in cases:
        (network, samples), (folder, _) = grown(kind), written(kind, form)
        code.append((str(folder), READ[form]))
        torch.save(samples, folder / "samples.pt")
        with torch.no_grad():
            expected[str(folder)] = network(samples)
    done = subprocess.run([sys.executable, "-c", READER, repr(code)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for name, outputs in expected.items():
        assert torch.allclose(torch.load(Path(name) / "outputs.pt"), outputs, atol=1e-5), name


def test_seeds_take_part() -> None:
    network, samples = grown("cnn")
    bare = GrownNetwork(network, [], [])
    with torch.no_grad():
        assert not torch.allclose(network(samples), bare(samples), atol=1e-2)


def test_a_format_that_changes_outputs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, samples = grown("mlp")
    exported.write(network, samples, tmp_path, "pytorch", {})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def wrong(program: Any, folder: Path) -> Any:
        (folder / "weights.pt").write_bytes(b"")
        return lambda x: network(x) * 1.001

    monkeypatch.setitem(exported.FORMATS, "pytorch", wrong)
    with pytest.raises(ConfigError, match=r"format=pytorch changes the outputs by a relative error of 1\.0e-03"):
        exported.write(network, samples, tmp_path, "pytorch", {})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_format_that_cannot_compute_one_sample_is_refused() -> None:
    assert np.isnan(_error(nn.Identity(), lambda x: x if len(x) > 1 else x * torch.nan, torch.ones(4, 2)))


def test_what_an_export_lacks_is_told_before_it_grows_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="host=2 is not among hosts=2, which are counted from 0: choose 0 to 1"):
        ExportConfig(checkpoint="run", host=2, hosts=2)
    monkeypatch.setitem(exported.NEEDS, "onnx", ("json", "not_there", "nor_this"))
    with pytest.raises(
        ConfigError, match=r"format=onnx needs not_there and nor_this: pip install -c constraints.txt -e '.\[export\]'"
    ):
        ExportConfig(checkpoint="run", format="onnx")


def test_one_sample_is_enough(tmp_path: Path) -> None:
    """The harder case of an MLP that is exported."""
    network, samples = grown("mlp")
    assert exported.write(network, samples[:1], tmp_path, "export", {}) <= exported.TOLERANCE
    loaded: Any = torch.export.load(tmp_path / "network.pt2").module()
    torch.testing.assert_close(loaded(samples), network(samples))


@pytest.mark.parametrize("form", ["pytorch", "export"])
def test_a_full_disk_is_one_sentence_and_leaves_no_part_of_a_file(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, samples = grown("mlp")
    monkeypatch.setattr("esper.files.os.fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(DiskError, match="cannot write"):
        exported.write(network, samples, tmp_path / "out", form, {})
    assert not (tmp_path / "out").exists()


def test_the_command_writes_the_network_that_was_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["hosts=2", "steps=8", "updates=1", "telemetry=quiet", "task.batch_size=256", "agent=schedule"]
    Trainer(check(words), tmp_path / "run").run()
    main([f"checkpoint={tmp_path / 'run'}", "host=2", "hosts=3"])
    folder = next((tmp_path / "run" / "export").iterdir())
    about = json.loads((folder / "topology.json").read_text())
    assert about["seeds"], "the schedule keeps a seed"
    assert (
        capsys.readouterr()
        .out.splitlines()[0]
        .startswith(f"host 2 with {about['seeds'][0]['blueprint']} in {about['seeds'][0]['slot']}")
    )
    from esper.task.digits import DigitsConfig

    data = DigitsConfig().build(CNNConfig()).data
    names: dict[str, Any] = {"__file__": str(folder / "network.py")}
    exec((folder / "network.py").read_text(), names)
    network = names["load"]()
    assert sum(parameter.numel() for parameter in network.parameters()) == about["parameters"]
    with torch.no_grad():
        right = network(data.inputs(data.test_x)).argmax(1) == data.test_y
    assert 100 * right.float().mean() == pytest.approx(about["test_accuracy"], abs=0.3)
    raw = load_digits()
    x = (torch.from_numpy(raw.images).float()[:, None] - about["input"]["mean"][0]) / about["input"]["std"][0]
    with torch.no_grad():
        right = (network(x).argmax(1) == torch.from_numpy(raw.target)).sum()
        known = sum(
            (network(x).argmax(1) == y).sum()
            for x, y in ((data.train_x, data.train_y), (data.valid_x, data.valid_y), (data.test_x, data.test_y))
        )
    assert right == pytest.approx(int(known), abs=2), "the file says how to standardize samples of one's own"


@pytest.mark.parametrize(
    ("word", "sentence"),
    [("format=pickle", "format=pickle is not known: choose from pytorch"), ("controller=me", "controller=me is not known")],
)
def test_mistakes_are_named(word: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["checkpoint=nowhere", word])
    assert sentence in capsys.readouterr().err
