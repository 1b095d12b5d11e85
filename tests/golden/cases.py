"""The golden runs: overrides that cover the options whose numbers a refactoring must not change."""

SMALL = "updates=2 hosts=4 steps=8"
DRIFT = "hosts=8 steps=16 task=digits_drift task.pretrain=2 task.pretrain_pool=4"

TRAIN: dict[str, str] = {
    "default": "updates=3",
    "two_shards": f"{SMALL} devices.auto.members_per_shard=2",
    "strict": f"{SMALL} gates=strict governor=strict steps=16 updates=1",
    "minibatches": f"{SMALL} agent.minibatches=2 agent.surrogate=per_head buffer.forfeit=prefix seed=3",
    "chunks": f"{SMALL} agent.chunk=4 agent.baseline=critic agent.twins=1",
    "ppo_mlp": f"{SMALL} agent=ppo_mlp",
    "best_of_random": f"{SMALL} agent=best_of_random",
    "greedy_potential": f"{SMALL} agent=greedy_potential",
    "heuristic": f"{SMALL} agent=heuristic steps=14",
    "periodic": f"{SMALL} agent=periodic steps=14",
    "random": f"{SMALL} agent=random steps=14 slots=all",
    "schedule": f"{SMALL} agent=schedule agent.blueprint=conv_light agent.slot=1",
    "wait": f"{SMALL} agent=wait",
    **{
        f"reward_{name}": f"{SMALL} agent=random reward={name} steps=12"
        for name in (
            "shaped",
            "simplified",
            "basic",
            "basic_plus",
            "escrow",
            "loss",
            "sparse",
            "minimal",
            "accuracy_minus_rent",
        )
    },
    "all_slots": f"{SMALL} slots=all steps=12 "
    + " ".join(f"agent.heads.{head}=free" for head in ("tempo", "style", "alpha_curve", "alpha_speed", "alpha_target")),
    "flops": f"{SMALL} reward.rent_unit=flops counterfactuals.each_step=[pairs] slots=three",
    "incubation_none": f"{SMALL} slots.incubation=none steps=10",
    "straight_through": f"{SMALL} slots.incubation=straight_through steps=10",
    "digits_mlp": f"{SMALL} task=digits_mlp blueprint=[norm,lora,mlp_small]",
    "python_text": "experiment=python_text updates=1 hosts=4 steps=4 task.epoch_samples=128 optimiser=sgd_text",
    "drift": f"{DRIFT} updates=2 hosts=4 agent=random",
    "bandit": f"{SMALL} agent=bandit updates=4",
    "schedule_bandit": f"{SMALL} agent=schedule_bandit updates=4",
    **{
        f"drift_{name.partition(' ')[0]}": f"{DRIFT} updates=6 agent={name}"
        for name in ("react", "react_bandit", "event_oracle env.timetable=true")
    },
    "mixed": "experiment=mixed_instances updates=1 hosts=4 steps=8",
}
"""Name -> overrides of `esper.train`."""

SWEEP = "reward=shaped,sparse seed=1793218286,436482421 updates=1 hosts=4 steps=8"
"""Overrides of several runs, run with -m. The seeds are those that `sweep=ab` drew until November 2026, so that the runs are
cells of its experiment in earlier trees; `tests.golden` renames those and drops the A/A control."""
SUBDIR = "hydra.sweep.subdir=${hydra:runtime.choices.reward}/seed-${seed}"
