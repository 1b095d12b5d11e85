"""The state of slots in checkpoints: tensors only, so that files of safetensors hold it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.growable.stored import as_lists, as_state, decode, encode, lasts
from esper.lifecycle.stages import empty
from tests.growable.test_grow import active, batch, grown

save_file = pytest.importorskip("safetensors.torch", reason="pip install -e '.[export]'")


def test_a_file_of_safetensors_holds_a_network_with_its_seeds(tmp_path: Path) -> None:
    net, (x, _) = active(grown()), batch()
    net.contributions(lambda: net(x)[:, 0])
    save_file.save_file(net.state_dict(), tmp_path / "net.safetensors")
    other = grown()
    other.load_state_dict(save_file.load_file(tmp_path / "net.safetensors"))
    torch.testing.assert_close(other(x), net(x), rtol=0, atol=0)
    np.testing.assert_equal(decode(other.get_extra_state()), decode(net.get_extra_state()))


def test_every_value_of_a_state_comes_back() -> None:
    generator, state = np.random.default_rng(0), empty(1, 3)
    for array in state.arrays().values():
        array[0, :2] = generator.standard_normal(2).astype(array.dtype)
    restored = as_state(decode(encode(as_lists(state))), 3)
    for name, array in state.arrays().items():
        assert restored.arrays()[name].dtype == array.dtype
        np.testing.assert_array_equal(restored.arrays()[name], array, err_msg=name)


@pytest.mark.parametrize(("value", "holds"), [([1, "a"], True), (None, True), ({1: 2}, False), (Tensor, False), (0.1, True)])
def test_what_is_not_json_does_not_last(value: object, *, holds: bool) -> None:
    assert lasts(value) is holds
