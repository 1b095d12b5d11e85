"""The health of each host: the state that a governor judges by."""

# N hosts, W window of losses, O operations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import BoolArray, FloatArray, IntArray, Op

GROWTH = (Op.GERMINATE, Op.ADVANCE, Op.FOSSILIZE)
"""Operations that continue growth: vetoed for suspect hosts. Pruning is allowed, since it may be the cure."""
SPREAD = 1.4826
"""Standard deviation of a normal variable over its median absolute deviation: 1 / (upper quartile of the standard normal)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The health of N hosts. A rollback restores the first two fields; the others count events."""

    loss_NW: FloatArray
    """Validation losses of the last healthy epochs, newest first, padded with NaN [nats]."""
    best_loss_N: FloatArray
    """Lowest validation loss [nats]."""
    suspect_N: IntArray
    """Consecutive suspect epochs."""
    well_N: IntArray
    """Consecutive healthy epochs."""
    falls_N: IntArray
    """Rollbacks since the last recovery."""
    retired_N: BoolArray
    """Hosts that stay at their last snapshot until the episode ends, without training or actions."""

    @property
    def veto_NO(self) -> BoolArray:
        """Operations vetoed on all slots of a host `[N, O]`."""
        veto = np.zeros((len(self.best_loss_N), len(Op)), dtype=np.bool_)
        veto[:, list(GROWTH)] = (self.suspect_N > 0)[:, None]
        veto[self.retired_N] = True
        veto[:, Op.WAIT] = False
        return veto

    def rebased(self, where_N: BoolArray, loss_N: FloatArray) -> "Health":
        """Return the health with this loss alone for the marked hosts, whose earlier losses include seeds removed since."""
        first_NW = np.full_like(self.loss_NW, np.nan)
        first_NW[:, 0] = loss_N
        return replace(
            self,
            loss_NW=np.where(where_N[:, None], first_NW, self.loss_NW),
            best_loss_N=np.where(where_N, loss_N, self.best_loss_N),
        )


def newborn(loss_N: FloatArray, window: int) -> Health:
    """Return the health of hosts with one known loss."""
    count_N = np.zeros(len(loss_N), dtype=np.int64)
    none_NW = np.full((len(loss_N), window), np.nan, dtype=np.float32)
    blank = Health(loss_NW=none_NW, best_loss_N=loss_N, suspect_N=count_N, well_N=count_N, falls_N=count_N, retired_N=count_N > 0)
    return blank.rebased(np.ones(len(loss_N), dtype=np.bool_), loss_N)


def usual(loss_NW: FloatArray) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the median of each host's losses, and a robust standard deviation (median absolute deviation), `[N]` each.

    Both are robust to outliers; F. R. Hampel, "The influence curve and its role in robust estimation", 1974.
    """
    loss = loss_NW.astype(np.float64)
    middle_N = np.nanmedian(loss, axis=1)
    return middle_N, SPREAD * np.nanmedian(np.abs(loss - middle_N[:, None]), axis=1)
