"""Policies that are passed on: a folder with weights, config, observation table, evaluation, and a model card."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.export import Dim

from esper.agent.base import Learner
from esper.checkpoint import encode, load_run, refuse
from esper.config import ConfigError
from esper.env.actions import PARAMETER_HEADS, VALUES, Head, HeadsConfig, Op
from esper.env.spec import EnvSpec
from esper.evaluation.card import model_card
from esper.evaluation.exported import save_program
from esper.evaluation.held_out import Evaluation
from esper.evaluation.regrow import own_threads
from esper.files import disk, write_whole
from esper.training import provenance
from esper.training.config_io import from_plain
from esper.training.resume import load_found, run_of, warn_of_other_data
from esper.training.run_folder import POLICY


def save_policy(checkpoint: Path | str, folder: Path | str, *, note: str = "", overwrite: bool = False) -> Path:
    """Write a trained policy to a folder that can be passed on, and return the folder.

    The folder holds `policy.pt`, which `esper.evaluate checkpoint=FOLDER`, `esper.export` and `esper.load_policy` read,
    `config.yaml`, `observation.json` (what the policy sees and decides), `evaluation.json` (the largest evaluation of this policy
    in the folder of its run, if there is one) and `README.md`, a model card. It lacks what training needs, so no run can
    resume from it.

    Args:
        checkpoint: folder of a run, for its newest checkpoint; FOLDER/best; or a file.
        folder: folder to write; unless `overwrite` is true, it must be empty or not exist.
        note: text for the model card, such as what the policy is for.
        overwrite: if true, replace files of an earlier call.

    Raises:
        ConfigError: there is no such checkpoint, its controller has learned nothing, the folder is not empty, or a file of the
            run is damaged.
        DiskError: writing failed.
    """
    (path, state, _), out = load_found(str(checkpoint), "checkpoint"), Path(folder)
    if not overwrite and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not empty: choose another folder, or set overwrite=True")
    write_bundle(path, state, out, note)
    return out


def write_bundle(path: Path, state: Mapping[str, Any], out: Path, note: str = "") -> None:
    """Write a trained policy to a folder, over the files of an earlier call.

    Args:
        path: file of the checkpoint. A training that goes on may have removed it.
        state: the state in it.
        out: folder to write.
        note: text for the model card.

    Raises:
        ConfigError: the controller has learned nothing, or a file of the run is damaged.
        DiskError: writing failed.
    """
    evaluation = _smallest(state)
    config, spec = evaluation.config, evaluation.env.layout
    evaluation.env.close()
    agent = evaluation.controller("policy")
    if not isinstance(agent, Learner):
        raise ConfigError(f"agent={config.choice('agent')} learns nothing, so there is no policy to save")
    kept = {name: state[name] for name in ("config", "update", "hparams", "env")}
    kept |= {"agent": agent.acting_state(), "buffer": {}, "watch": {}, "policy_only": True}
    refuse(kept)
    run = run_of(path)
    found = _largest_evaluation(run, evaluation.updates)
    first = next(iter(provenance.read(run / provenance.FILE)), {})
    card = model_card(config, evaluation.updates, found, name=out.resolve().name, note=note, run=first)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("evaluation.json", "policy.pt2") if run.resolve() != out.resolve() else ():  # of an earlier policy
        with disk(f"remove {out / name}"):
            (out / name).unlink(missing_ok=True)
    write_whole(out / POLICY, encode(kept))
    write_whole(out / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(state["config"]["values"])))
    write_whole(out / "observation.json", json.dumps(observation_table(spec, config.agent.heads), indent=1) + "\n")
    if found:
        write_whole(out / "evaluation.json", json.dumps(found, indent=1) + "\n")
    write_whole(out / "README.md", card)


def observation_table(spec: EnvSpec, heads: HeadsConfig) -> dict[str, Any]:
    """Return what a policy sees and decides, in the order of its arrays. docs/observation.md has the meaning of each name."""
    values: dict[str, list[str]] = {
        "op": [op.name.lower() for op in Op],
        "slot": list(spec.slot_names),
        "blueprint": list(spec.blueprint_names),
        **{head.name.lower(): list(names) for head, names in VALUES.items()},
    }
    return {
        "features": list(spec.feature_names),
        "slots": list(spec.slot_names),
        "slot_features": list(spec.slot_feature_names),
        "blueprints": [*spec.blueprint_names, "empty"],
        "actions": {head.name.lower(): values[head.name.lower()] for head in Head},
        "fixed_actions": {head.name.lower(): values[head.name.lower()][index] for head, index in heads.pinned.items()},
        "legal_values": [f"{head.name.lower()}={value}" for head in PARAMETER_HEADS for value in values[head.name.lower()]],
        "steps": spec.num_steps,
    }


def export_program(folder: Path) -> Path | None:
    """Export one decision step of the policy in a folder that `save_policy` wrote, for `torch.export.load`, and check it against
    the policy.

    Returns:
        the file that was added to the folder;
        None if the agent has no such program.

    Raises:
        ConfigError: the outputs of the program differ from those of the policy.
    """
    evaluation = _smallest(load_run(folder / POLICY))
    evaluation.env.close()
    agent = evaluation.controller("policy")
    program = agent.program() if isinstance(agent, Learner) else None
    if program is None:
        return None
    example: tuple[torch.Tensor, ...] = getattr(program, "example")()  # noqa: B009
    hosts = Dim("hosts", min=1)
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):  # of the exporter, on how PyTorch's LSTM keeps its weights
        exported = torch.export.export(program.eval(), example, dynamic_shapes=tuple({0: hosts} for _ in example))
        save_program(exported, folder / "policy.pt2")
        loaded: Any = torch.export.load(folder / "policy.pt2").module()
        generator = torch.Generator().manual_seed(0)
        inputs = [torch.rand(9, *one.shape[1:], generator=generator).to(one.dtype) for one in example]
        inputs[3:5] = [torch.ones_like(one) for one in inputs[3:5]]
        pairs = zip(program(*inputs), loaded(*inputs), strict=True)
    if not all(torch.allclose(one, other, atol=1e-5) for one, other in pairs):
        raise ConfigError("the program that torch.export wrote does not decide as the policy does: use policy.pt")
    return folder / "policy.pt2"


def _smallest(state: Mapping[str, Any]) -> Evaluation:
    """Return an evaluation with as few hosts as the devices and workers of the run allow, to read the sizes of its policy."""
    config = from_plain(state["config"])
    with own_threads():
        hosts = max(2, config.cluster.num_workers * len(config.devices))
        found = Evaluation(config, state["agent"], hosts=hosts, env_state=state["env"], updates=state["update"])
    warn_of_other_data(state, found.env.hparams())
    return found


def _largest_evaluation(run: Path, updates: int) -> dict[str, Any] | None:
    """Return the evaluation of this policy on its own task with the most hosts, the newest of several, without the numbers of
    single hosts.

    Args:
        run: folder of the run, or of a saved policy.
        updates: updates after which it was evaluated.
    """
    found: dict[int, dict[str, Any]] = {}
    saved = run.glob("evaluation.json") if (run / POLICY).exists() else ()
    for path in [*saved, *sorted(run.glob(f"evaluation_{updates:06d}_*.json"), key=lambda path: path.stat().st_mtime)]:
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
            if "transfer" not in report and any(row["controller"] == "policy" for row in report["rows"]):
                kept = {name: part for name, part in report.items() if name != "hosts"}
                found[int(report["settings"]["hosts"])] = kept
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is damaged: remove it, or evaluate the run again") from error
    return found[max(found)] if found else None
