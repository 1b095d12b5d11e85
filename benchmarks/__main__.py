"""All speed claims in one command: runs every benchmark, and writes the ratios with date, versions and hardware.

    python -m benchmarks
    python -m benchmarks --only fused_training --out results.md
    python -m benchmarks --quick

The record is a Markdown page, and the same as JSON beside it. Run it on a quiet machine, with OMP_NUM_THREADS=1: the ratios of a
busy one have wide ranges, which the page shows.
"""

import argparse
import json
import runpy
import sys
from dataclasses import asdict
from datetime import date
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import paired_timing
from roofs import copy_bandwidth, matmul_rate

from esper.pool.devices import device_name
from esper.training.provenance import LIBRARIES, code_version, installed

HERE = Path(__file__).parent
RUNS = (
    ("fused_training", ()),
    ("shipped_tasks", ()),
    ("own_kernels", ()),
    ("own_kernels", ("--seeds",)),
    ("convolutions", ()),
    ("growing_seeds", ()),
    ("env_overhead", ()),
    ("env_overhead", ("--way", "probed")),
    ("step_overhead", ()),
    ("counterfactuals", ()),
    ("compiled", ()),
    ("policy_speed", ()),
    ("policy_speed", ("--hosts-apart",)),
    ("deployed_hosts", ()),
    ("precision", ()),
    ("workers", ()),
    ("start_time", ()),
    ("gpu", ()),
)
"""Script and arguments of every benchmark. That of a GPU writes a record of its own, with --out, and is left out without one."""


def machine(*, quick: bool) -> dict[str, object]:
    """Return date, versions, hardware, and the roofs of one thread."""
    code, size = code_version(), 16 if quick else 1024
    return {
        "date": date.today().isoformat(),
        "esper": f"{code['version']}, commit {code['commit']}{' with changes' * bool(code['changed'])}",
        **{name: installed(name) for name in LIBRARIES},
        "processor": device_name(torch.device("cpu")),
        "cores": torch.get_num_threads(),
        "copy bandwidth of a thread [GB/s]": round(copy_bandwidth((4 * size) ** 2), 2),
        "matrix product of a thread [GFLOP/s]": round(matmul_rate(size), 1),
    }


def run(script: str, arguments: tuple[str, ...], *, quick: bool) -> list[paired_timing.Claim]:
    """Run a script as from the command line, and return its claims."""
    print(f"\n== {' '.join([script, *arguments])}", flush=True)
    before, threads = sys.argv, torch.get_num_threads()
    paired_timing.CLAIMS.clear()
    sys.argv = [f"{script}.py", *arguments, *["--quick"] * quick]
    try:
        runpy.run_path(str(HERE / f"{script}.py"), run_name="__main__")
    finally:
        sys.argv = before
        torch.set_num_threads(threads)
    return list(paired_timing.CLAIMS)


def page(about: dict[str, object], claims: list[dict[str, object]]) -> str:
    """Return the record as Markdown."""
    facts = [f"- {name}: {value}" for name, value in about.items() if name != "date"]
    rows = ["| benchmark | what | median | range | rounds |", "|---|---|---|---|---|"]
    for claim in claims:
        median, low, high = (f"{claim[name]:.3g}" for name in ("median", "low", "high"))
        rows.append(f"| {claim['benchmark']} | {claim['what']} | {median} | {low} to {high} | {claim['rounds']} |")
    lines = [f"# Benchmarks of {about['date']}", "", *facts, "", *rows, "", "Ratios of times of candidates that ran in turn."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted({script for script, _ in RUNS}), help="run one script alone")
    parser.add_argument("--out", type=Path, help="the Markdown page; default: benchmarks/results/DATE.md, with --quick none")
    parser.add_argument("--quick", action="store_true", help="few hosts and rounds: checks the scripts, measures nothing")
    given = parser.parse_args()
    about, claims = machine(quick=given.quick), list[dict[str, object]]()
    out = given.out or (None if given.quick else HERE / "results" / f"{about['date']}.md")
    for script, arguments in RUNS:
        if given.only in (None, script) and (script != "gpu" or given.quick or torch.cuda.is_available()):
            name, more = " ".join([script, *arguments]), ("--out", str(out.parent)) if script == "gpu" and out else ()
            claims += [{"benchmark": name, **asdict(claim)} for claim in run(script, (*arguments, *more), quick=given.quick)]
            if out is not None:  # after each script: a later one may fail
                write(out, about, claims)
    print(f"\n{page(about, claims)}")
    if out is not None:
        print(f"written: {out}, {out.with_suffix('.json')}")


def write(out: Path, about: dict[str, object], claims: list[dict[str, object]]) -> None:
    """Write the record as Markdown and as JSON."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(about, claims))
    out.with_suffix(".json").write_text(json.dumps({"about": about, "claims": claims}, indent=1) + "\n")


if __name__ == "__main__":
    main()
