"""A search over rules that react to what happens to a host."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from esper.agent.base import AgentConfig, check_offered, slot_of_these_hosts
from esper.agent.reading import offered, slot_features
from esper.agent.scripted.rule import Reaction, ReactRule
from esper.agent.search import Search
from esper.buffer.base import Buffer
from esper.env.actions import Op
from esper.env.spec import EnvSpec, Observation
from esper.seeding import stream
from esper.text import counted

DROPS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Falls of the accuracy to choose from [pp]."""
RISES = (1.5, 2.0, 4.0, 8.0)
"""Factors of growth potential to choose from."""
PATIENCE = (0, 1, 2, 3, 4)
"""Steps for which a fall or rise must have lasted, to choose from."""
ERRORS = (None, 0.0, 1.0, 2.0)
"""Candidate thresholds of a contribution, in its standard errors; None keeps every seed."""


@dataclass(kw_only=True, slots=True)
class ReactConfig(AgentConfig):
    """A rule that plants one seed at a time: at the start, or when the accuracy falls or the growth potential rises. It keeps the
    seed, or prunes it if its contribution is not significant. One rule is tried per update, on the same hosts, and the best one
    so far by mean return is played. The first rule never plants; the others are drawn at random or change one part of the
    best. Where growth potential is not measured, no rule uses it."""

    one_episode: ClassVar[bool] = True
    needs_hosts: ClassVar[bool] = True

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "React":
        return React(spec, seed=seed, nothing=ReactRule(), gamma=self.gamma)


class React(Search[ReactRule]):
    """See `ReactConfig`."""

    def player(self, candidate: ReactRule) -> Reaction:
        return Reaction(candidate, self.spec)

    def draw(self, first: Observation) -> ReactRule:
        rng = stream(self.seed, "rule", self.tried)
        free: list[Any] = np.flatnonzero(first.legal_slots[:, Op.GERMINATE].any(axis=0)).tolist()
        kinds: list[Any] = np.flatnonzero(offered(first, self.spec)[0]).tolist()
        measured = bool(slot_features(first, self.spec, "potential_measured").any())
        by_potential: list[Any] = [None] if measured else []

        def one(values: Any) -> Any:
            return values[rng.integers(len(values))]

        def when() -> dict[str, Any]:
            trigger = one(("start", "drop", "potential") if measured else ("start", "drop"))
            if trigger == "start":
                return {"trigger": trigger, "threshold": 0.0, "patience": 0}
            return {"trigger": trigger, "threshold": one(DROPS if trigger == "drop" else RISES), "patience": one(PATIENCE)}

        parts: list[Callable[[], dict[str, Any]]] = [
            when,
            lambda: {"slot": one([*by_potential, *free])},
            lambda: {"blueprint": one([*by_potential, *kinds])},
            lambda: {"errors": one(ERRORS)},
        ]
        if self.best.trigger != "never" and rng.random() < 0.5:
            rule = self.best
            while rule == self.best:  # on the same hosts, the same rule has the same return
                rule = replace(self.best, **one(parts)())
            return rule
        return ReactRule(**{name: value for part in parts for name, value in part().items()})

    def summary(self) -> list[tuple[str, str]]:
        """Return the best rule in words."""
        rule = self.best
        if rule.trigger == "never":
            return [("best rule", "never grow")]
        when = {
            "start": "at the start",
            "drop": f"when the accuracy falls by {rule.threshold:g} pp",
            "potential": f"when the largest growth potential rises by a factor of {rule.threshold:g}",
        }[rule.trigger]
        if rule.patience:
            when += f" for more than {counted(rule.patience, 'step')}"
        which = "the best blueprint by potential" if rule.blueprint is None else self.spec.blueprint_names[rule.blueprint]
        where = "the best slot by potential" if rule.slot is None else self.spec.slot_names[rule.slot]
        errors = "" if rule.errors is None else f"{rule.errors:g} standard error{'s' * (rule.errors != 1)}"
        keep = f"if its contribution exceeds {errors}" if errors else "always"
        return [("best rule", f"{when}, plant {which} in {where}; keep it {keep}")]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return Search.state_dict(self) | {
            "best": self.best.plain(),
            "blueprints": list(self.spec.blueprint_names),
            "slots": list(self.spec.slot_names),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned.

        Raises:
            ValueError: the best rule cannot be played on these hosts.
        """
        rule = ReactRule(**{field.name: state["best"][field.name] for field in fields(ReactRule)})
        if rule.slot is not None:
            rule = replace(rule, slot=slot_of_these_hosts("in the best rule", rule.slot, state["slots"], self.spec.slot_names))
        if rule.blueprint is not None:
            name = state["blueprints"][rule.blueprint]
            check_offered(f"blueprint={name} in the best rule", name, self.spec.blueprint_names, learned=True)
            rule = replace(rule, blueprint=self.spec.blueprint_names.index(name))
        Search.load_state_dict(self, state)
        self.play(rule)
