"""Numbers, durations, curves and errors as text."""

import math
import sysconfig
import traceback
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

LETTERS = ("", "k", "M", "G", "T", "P", "E")
"""Letters of the powers of 1,000."""
MARKS = "▁▂▃▄▅▆▇█"
_PYTHON = Path(sysconfig.get_path("stdlib"))


def number(value: float) -> str:
    """Return a number with about four digits and separators between thousands."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def short(value: float) -> str:
    """Return a number with two or three digits, or its thousands with a letter, as in 0.31, 12.3 and 12.3k."""
    if abs(value) >= 1e4:
        return si(value)
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.") else text  # no minus zero


def si(value: float, digits: int = 3, gap: str = "") -> str:
    """Return a number in `digits` digits with the letter of its power of 1,000, as in 7.07k; a dash if it is not finite."""
    if not math.isfinite(value):
        return "-"
    rounded = float(f"{value:.{digits}g}")
    power = min(max(0, len(f"{abs(rounded):.0f}") - 1) // 3, len(LETTERS) - 1)
    return f"{rounded / 1000**power:g}{gap}{LETTERS[power]}".rstrip()


def decimals(*values: float) -> int:
    """Return how many decimals show a mean and its interval: 0, 2 or 4, by the largest finite one."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=1.0)
    return 0 if largest >= 1000 else 2 if largest >= 0.1 or largest == 0 else 4


def alike(*values: float) -> list[str]:
    """Return a mean and its interval as text, all with the same decimals, enough to tell them apart; large ones with a letter."""
    finite = [value for value in values if math.isfinite(value)]
    largest, spread = max(map(abs, finite), default=1.0), max(finite, default=1.0) - min(finite, default=0.0)
    places, power = decimals(*values), 0
    if largest >= 1e4:
        power = min((len(f"{largest:.0f}") - 1) // 3, len(LETTERS) - 1)
        places = max(0, 1 - math.floor(math.log10((spread or largest) / 1000**power)))
    elif 0 < largest < 0.01:
        places = 1 - math.floor(math.log10(largest))
    shown = [round(value / 1000**power, places) + 0.0 for value in values]  # no minus zero
    return [f"{value:.{places}f}{LETTERS[power]}" if math.isfinite(value) else f"{value}" for value in shown]


def percent(share: float) -> str:
    """Return a share such as "38 %", or "0.17 %" if it is small."""
    return f"{100 * share:.2g} %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def error_in_words(error: BaseException) -> str:
    """Return kind and message of an error in one line, and the place in code that is the user's, unless the message has it."""
    message = " ".join(str(error).split())
    frames = [one for one in reversed(traceback.extract_tb(error.__traceback__)) if _is_users(one.filename)]
    last = next((one for one in frames if not _is_installed(one.filename)), frames[0] if frames else None)
    place = f" ({Path(last.filename).name}, line {last.lineno})" if last else ""
    return f"{type(error).__name__}: {message}{'' if isinstance(error, SyntaxError) else place}"


def _is_users(file: str) -> bool:
    """Return whether a file belongs neither to Esper nor to Python. Python's `<string>` and `<frozen posixpath>` do."""
    path = Path(file)
    pythons = file.startswith("<") or (path.is_relative_to(_PYTHON) and not _is_installed(file))
    return not path.is_relative_to(Path(__file__).parent) and not pythons


def _is_installed(file: str) -> bool:
    """Return whether a file belongs to an installed package."""
    return bool({"site-packages", "dist-packages"} & {*Path(file).parts})


def counted(count: int, noun: str) -> str:
    """Return a number of things, as in 1 update or 3 updates."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def bins(values: Sequence[float], most: int) -> list[float]:
    """Divide a series, without its non-finite values, into at most `most` equal parts, and return their means."""
    finite = [value for value in values if math.isfinite(value)]
    count = min(most, len(finite))
    edges = [len(finite) * place // count for place in range(count + 1)] if count else []
    return [sum(finite[low:high]) / (high - low) for low, high in pairwise(edges)]


def spark(values: Sequence[float]) -> str:
    """Return a sparkline, one character per finite value, scaled from the lowest value to the highest."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    return "".join(MARKS[round((value - low) / span * (len(MARKS) - 1))] if span else MARKS[0] for value in finite)


def clock(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"


def duration(seconds: float) -> str:
    """Return an expected duration with two digits, as in 12 min."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{float(f'{seconds / size:.2g}'):g} {unit}"
    return f"{seconds:.0f} s"
