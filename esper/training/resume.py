"""Resuming a run: its newest checkpoint, and its config with the changes that the command asks for."""

import shlex
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from esper.checkpoint import Checkpoints, load_run, load_run_and_digest, retry_if_removed
from esper.config import Config, ConfigError, did_you_mean
from esper.notices import UserNotice
from esper.training.config_io import from_plain, resumed
from esper.training.run_folder import BEST, CHECKPOINTS, POLICY


def find_checkpoint(path: str, key: str) -> Path:
    """Return the checkpoint file that a path names: itself, the newest of a run's folder, the best one with FOLDER/best, or the
    policy in a folder that `esper.save_policy` wrote.

    Args:
        key: key that the path was given for, for the message.

    Raises:
        ConfigError: there is none.
    """
    place = Path(path)
    if place.is_file():
        return place
    if (place / POLICY).is_file():
        return place / POLICY
    run = place.parent if _names_best(place) else place
    newest = Checkpoints(run / CHECKPOINTS).latest()
    if newest is not None and run is not place:
        state = load_run(newest)
        best = state.get("best")
        if best is None and from_plain(state["config"]).agent.explores:
            agent = state["config"]["choices"]["agent"]
            raise ConfigError(
                f"{key}={path} names the best checkpoint, but agent={agent} explores in training, so its returns do not tell "
                f"which is best: write {key}={run}, for the newest"
            )
        if best is None:
            raise ConfigError(f"{key}={path} names the best checkpoint, and the run has no return yet: train at least one update")
        return Checkpoints(run / CHECKPOINTS).path(best["update"])
    if newest is None:
        raise ConfigError(f"{key}={no_checkpoint(run)}")
    return newest


def newest_of(folder: Path) -> Path | None:
    """Return the newest intact checkpoint of a run, or the file of a saved policy; None if the folder has neither.

    Raises:
        CheckpointError: there are checkpoints, and each is damaged.
    """
    policy = folder / POLICY
    return policy if policy.exists() else Checkpoints(folder / CHECKPOINTS).latest()


def load_found(path: str, key: str) -> tuple[Path, dict[str, Any], str]:
    """Return the checkpoint that a path names, as `find_checkpoint` does, with its state and digest. The run may go on.

    Raises:
        ConfigError: there is none.
        CheckpointError: it cannot be used.
    """

    def read() -> tuple[Path, dict[str, Any], str]:
        found = find_checkpoint(path, key)
        return found, *load_run_and_digest(found)

    return retry_if_removed(read)


def load_newest(folder: Path) -> dict[str, Any] | None:
    """Return the state of the checkpoint that `newest_of` names; None if there is none. The run may go on.

    Raises:
        CheckpointError: none can be used.
    """
    return retry_if_removed(lambda: load_run(newest) if (newest := newest_of(folder)) else None)


def may_hold_checkpoint(path: str) -> bool:
    """Return whether there is anything that `find_checkpoint` could open, without opening it."""
    place = Path(path)
    return (place.parent if _names_best(place) else place).exists()


def _names_best(place: Path) -> bool:
    """Return whether a path names the best checkpoint of a run, and not a run in a folder of that name."""
    return place.name == BEST and not (place / CHECKPOINTS).is_dir()


def run_of(checkpoint: Path) -> Path:
    """Return the folder of the run, or of the saved policy, that a checkpoint belongs to."""
    return checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else checkpoint.parent


def no_checkpoint(folder: str | Path) -> str:
    """Return why a folder without checkpoints cannot be used, with the remedy."""
    if not Path(folder).exists():
        beside = (path for path in sorted(Path(folder).parent.glob("*")) if path.is_dir())
        near = [path.name for path in beside if (path / CHECKPOINTS).is_dir() or any(path.glob("*.pt"))]
        meant = did_you_mean(Path(folder).name, near)
        if meant and (parent := str(Path(folder).parent)) != ".":
            meant = meant.replace("did you mean ", f"did you mean {parent}/")
        return f"{folder} does not exist: name the folder that esper.train printed{meant}"
    if Path(folder, ".hydra").is_dir():
        return f"{folder} holds a run that ended before it saved anything: start it again"
    if Path(folder, "multirun.yaml").exists():
        return several_runs(folder)
    return f"{folder} holds no checkpoint: name the folder that esper.train printed"


def several_runs(folder: str | Path) -> str:
    """Return why the folder of a sweep cannot be used as that of a run, with the remedy."""
    runs = sorted(path.parent for depth in ("*", "*/*") for path in Path(folder).glob(f"{depth}/{CHECKPOINTS}"))
    such = f", such as {runs[0]}" if runs else ""
    return (
        f"{folder} holds several runs: name one of them{such}; to continue all, repeat the command of the sweep with "
        f"{shlex.quote(f'hydra.sweep.dir={folder}')}"
    )


def check_data(state: Mapping[str, Any], found: Mapping[str, object]) -> None:
    """Check that a run resumes on the data that it was started with.

    Args:
        state: the state in its checkpoint.
        found: what `Environment.hparams` returns now.

    Raises:
        ConfigError: the data differs.
    """
    if changed := other_data(state, found):
        raise ConfigError(f"the run was started on {changed}: restore the data, or start a new run")


def warn_of_other_data(state: Mapping[str, Any], found: Mapping[str, object]) -> None:
    """Warn if a policy is evaluated on other data than it was trained on, though the task has the same name; see `check_data`."""
    if changed := other_data(state, found):
        warnings.warn(f"the policy was trained on {changed}: restore the data", UserNotice, stacklevel=3)


def other_data(state: Mapping[str, Any], found: Mapping[str, object]) -> str:
    """Return in words how the data of a run differs from that which is found now, see `check_data`; empty if it does not."""
    changed = [(before, now) for name, now in found.items() if (before := state["hparams"].get(name, now)) != now]
    return "".join(f"other data (fingerprint {before}, now {now})" for before, now in changed[:1])


def continued(config: Config, overrides: Sequence[str]) -> Config:
    """Return the config of the run that a config resumes, with the changes that its overrides ask for.

    A config that resumes nothing is returned as it is.

    Raises:
        ConfigError: the run cannot be resumed in this way.
    """
    if config.resume is None:
        return config
    state = load_run(find_checkpoint(config.resume, "resume"))
    if state.get("policy_only"):
        raise ConfigError(
            f"resume={config.resume} names a policy without its training state: evaluate it with esper.evaluate "
            f"checkpoint={config.resume}, or start a new run"
        )
    saved = from_plain(state["config"])
    return resumed(saved, config, [override for override in overrides if not override.startswith("sweep=")])
