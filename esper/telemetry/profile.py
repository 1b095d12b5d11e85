"""The profile of one update: a trace for Perfetto or TensorBoard, and a table of the dearest operations of each phase."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch._C._profiler import _ExperimentalConfig  # pyright: ignore[reportPrivateUsage]
from torch.profiler import profile

from esper.files import disk
from esper.phases import MARK

EPOCHS = 2
"""Last host epochs of an update in its profile, which goes on to the next update: they contain every phase, and the trace of a
whole update is too large for a viewer."""
TOP_OPERATIONS = 10
"""Operations of each phase in the table."""


class UpdateProfile:
    """Records what all threads do, from `start` to `write`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Without this, only the thread that starts the profile is recorded, and shards train in threads of their own.
        self._profile = profile(experimental_config=_ExperimentalConfig(profile_all_threads=True))
        self.recording = False

    def start(self) -> None:
        """Start recording."""
        self._profile.start()
        self.recording = True

    def stop(self) -> None:
        """Stop recording; further calls do nothing."""
        if self.recording:
            self._profile.stop()
            self.recording = False

    def write(self, update: int) -> None:
        """Stop recording, and write trace and table.

        Raises:
            DiskError: writing failed.
        """
        self.stop()
        name = f"update_{update:06d}"
        with disk(f"write the profile to {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            # The names by which TensorBoard's profile plugin finds traces.
            self._profile.export_chrome_trace(str(self.folder / f"{name}.pt.trace.json.gz"))
            (self.folder / f"{name}.txt").write_text(operations_table(self._profile.events() or ()), encoding="utf-8")


def operations_table(events: Iterable[Any]) -> str:
    """Return the dearest operations of each phase, by their own time on CPU and device, without that of operations they call.

    Args:
        events: `torch.autograd.profiler_util.FunctionEvent`s.
    """
    events = list(events)
    marks: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
    for event in events:
        if event.name.startswith(MARK):
            marks[event.thread].append((event.time_range.start, event.time_range.end, event.name.removeprefix(MARK)))
    for of_thread in marks.values():
        of_thread.sort()
    spent: dict[str, Counter[str]] = defaultdict(Counter)
    calls: Counter[tuple[str, str]] = Counter()
    for event in events:
        if not event.is_user_annotation and event.device_type.name == "CPU":  # whose device time is that of its kernels
            phase = _phase_at(marks[event.thread], event.time_range.start)
            spent[phase][event.name] += event.self_cpu_time_total + event.self_device_time_total
            calls[phase, event.name] += 1
    lines: list[str] = []
    for phase, times in sorted(spent.items(), key=lambda item: -item[1].total()):
        lines += [f"{phase}: {times.total() / 1e3:.1f} ms", f"  {'ms':>9} {'share':>7} {'calls':>7}  operation"]
        for name, microseconds in times.most_common(TOP_OPERATIONS):
            share = microseconds / max(times.total(), 1e-9)
            lines.append(f"  {microseconds / 1e3:9.2f} {share:7.1%} {calls[phase, name]:7}  {name}")
        lines.append("")
    return "\n".join(lines)


def _phase_at(marks: list[tuple[float, float, str]], time: float) -> str:
    """Return the phase of a thread at a time, or `other` outside the marks."""
    index = bisect_right(marks, time, key=lambda mark: mark[0]) - 1
    return marks[index][2] if index >= 0 and time <= marks[index][1] else "other"
