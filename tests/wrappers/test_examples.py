"""Every example trains for two updates, and is short enough to be read at once."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import pytest
import torch

import esper
from tests.forked import run_forked

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
GROW = sorted((FOLDER / "grow").glob("*.py"))
NMS = """
import torch
try:
    import torchvision
except RuntimeError:  # a build for GPUs beside a torch without; Lightning and DACBench import it
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
DEFINED: dict[str, object] = {}
"""Keeps the operators of NMS, which are gone with their library."""
NEEDS = {
    "sb3_ppo": "stable_baselines3",
    "sb3_dqn": "stable_baselines3",
    "maskable_ppo": "sb3_contrib",
    "recurrent_ppo": "sb3_contrib",
    "torchrl_ppo": "torchrl",
    "single_file_ppo": "gymnasium",
    "rllib_ppo": "ray",
    "dacbench_ppo": "dacbench",
}
"""Library of each example."""
RETURN = re.compile(r"(?:ep_rew_mean +\||update \d+: return) +(\S+)")
"""Mean return of an update, as an example prints it."""
ROOTS = """
from esper.env.base import Environment
begin = Environment.begin
def tell(env, seed, options):
    begin(env, seed, options)
    print("root:", env.root)
Environment.begin = tell
"""
"""A plugin that prints the root seed of every episode."""
QUICK = {"maskable_ppo", "single_file_ppo"}
"""Examples that are not slow tests."""
FORKED = {"sb3_ppo", "sb3_dqn", "maskable_ppo", "recurrent_ppo", "torchrl_ppo", "single_file_ppo"}
"""Examples that run in a fork, which is faster; the others show that a new interpreter finds everything."""


def test_every_example_says_what_it_needs() -> None:
    assert {path.stem for path in EXAMPLES} == NEEDS.keys()


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.slow) for path in EXAMPLES],
)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    if path.stem == "rllib_ppo" and not gymnasium.__version__.startswith("1.2."):
        pytest.skip("RLlib needs gymnasium 1.2; `.ci/run slow` tests it in an environment of its own")
    if find_spec(NEEDS[path.stem]) is None:
        pytest.skip("pip install dacbench" if path.stem == "dacbench_ppo" else "pip install -e '.[drivers]'")
    single = path.stem == "single_file_ppo"  # which has a task's id
    few = ["task.epoch_samples=128", "task.valid_samples=40"] if single else ["env=sandbox"]
    updates = 1 if path.stem in ("rllib_ppo", "dacbench_ppo") else 2
    (tmp_path / "roots.py").write_text(ROOTS)
    words = [str(updates), "steps=6", "seed=3", "plugins=[roots.py]", *few]
    if path.stem in FORKED:
        done = run_forked(f"examples.{path.stem}", *words, cwd=tmp_path)
    else:
        if path.stem == "dacbench_ppo":
            (tmp_path / "sitecustomize.py").write_text(NMS)
        found = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": found}
        command = [sys.executable, str(path), *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(RETURN.findall(done.stdout)) == updates
    assert set(re.findall(r"root: (\d+)", done.stdout)) == {"3"}, "the seed among the overrides"
    assert len(path.read_text().splitlines()) < 60


@pytest.mark.slow
@pytest.mark.parametrize("path", GROW, ids=lambda path: path.stem)
def test_networks_of_other_loops_grow(path: Path, tmp_path: Path) -> None:
    library, epochs, least = {
        "plain_loop": ("torch", 8, 0),
        "lightning_module": ("lightning_utilities", 8, 80),
        "hugging_face": ("transformers", 7, 40),
    }[path.stem]
    if find_spec(library) is None:
        pytest.skip("pip install -e '.[drivers]'")
    if library != "torch":
        exec(NMS, DEFINED)
    done = run_forked(f"examples.grow.{path.stem}", str(epochs), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    accuracies = [float(word) for word in done.stdout.split("accuracy")[-1].split() if word.replace(".", "").isdigit()]
    if path.stem == "plain_loop":
        grown, alone = accuracies
        assert grown > alone + 10
    else:
        assert "stage: holding" in done.stdout
        assert accuracies[0] > least
    assert len(path.read_text().splitlines()) < 60


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_trainer_of_hugging_face_computes_the_loss_of_the_plain_model(checkpointing: bool, tmp_path: Path) -> None:
    if find_spec("transformers") is None:
        pytest.skip("pip install -e '.[drivers]'")
    exec(NMS, DEFINED)
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
    texts = torch.randint(0, 64, (16, 9), generator=torch.Generator().manual_seed(0))
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        max_steps=2,
        logging_steps=1,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        gradient_checkpointing=checkpointing,
        remove_unused_columns=False,
        label_names=["labels"],
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    logs = list[list[tuple[float, float]]]()
    for grows in (False, True):
        transformers.set_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
        net = esper.grow(model, ["model.layers.0"], {"input_ids": texts[:2]}) if grows else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
        data = [{"input_ids": text, "labels": text} for text in texts]
        trainer = transformers.Trainer(net, arguments, train_dataset=data, optimizers=(optimizer, schedule))
        trainer.train()
        logs.append([(one["loss"], one["grad_norm"]) for one in trainer.state.log_history if "loss" in one])
    assert logs[0] == logs[1]
    assert len(logs[0]) == 2
