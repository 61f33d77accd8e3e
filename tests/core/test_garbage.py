import gc

import pytest

from fastreader.core.garbage import without_collections


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_again_after_the_block_if_it_was_before(enabled):
    try:
        gc.enable() if enabled else gc.disable()
        with pytest.raises(RuntimeError), without_collections():
            assert not gc.isenabled()
            raise RuntimeError
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
