"""Progression of diabetes after a year, from ten measurements of each of 442 patients: a small, noisy table of scikit-learn.

R2 of a linear regression on the test set is 40 to 50 %, and little of the rest can be learned.
"""

from dataclasses import dataclass
from typing import Any

from esper.seeding import stream
from esper.task.data import Data
from esper.task.regression import RegressionConfig, split_table


@dataclass(kw_only=True, slots=True)
class DiabetesConfig(RegressionConfig):
    """scikit-learn's diabetes data, split 266 / 88 / 88, with healthy hosts. Standard kinds: [oo,xo,ox]."""

    def load(self, context: int) -> Data:
        from sklearn.datasets import load_diabetes  # late: it takes a second to import

        bunch: Any = load_diabetes()
        return split_table(bunch.data, bunch.target, stream(self.split_seed, "diabetes_split"), "task=diabetes")
