"""Uploads: all arrays in one copy, and arrays of one layout always at the same addresses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastreader.ops.upload import MisfitError, StaticUpload, Upload, with_room

CPU, META = torch.device("cpu"), torch.device("meta")


def test_arrays_on_the_cpu_are_shared() -> None:
    array = np.arange(5)
    assert Upload(CPU).add(array).get().data_ptr() == array.ctypes.data


def test_arrays_arrive_together() -> None:
    upload = Upload(META)
    first, second = upload.add(np.arange(5)), upload.add(np.zeros((2, 3), dtype=np.int32))
    assert second.get().shape == (2, 3) and second.get().dtype == torch.int32
    assert first.get().untyped_storage()._cdata == second.get().untyped_storage()._cdata


def filled(upload: StaticUpload, seed: int, rows: int) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    arrays = rng.integers(0, 9, 7), rng.integers(0, 9, (rows, 3)).astype(np.int32), rng.integers(0, 9, 5)
    added = [upload.add(array, varies=i == 1) for i, array in enumerate(arrays)]
    got = [each.get() for each in added]
    assert np.array_equal(got[0].numpy(), arrays[0]) and np.array_equal(got[2].numpy(), arrays[2])
    assert np.array_equal(got[1][:rows].numpy(), arrays[1]) and not got[1][rows:].any()
    return got


def test_arrays_of_one_layout_lie_at_the_same_addresses() -> None:
    upload = StaticUpload(CPU)
    first = filled(upload, 1, 50)
    for seed, rows in ((2, 3), (3, with_room(50))):
        upload.again()
        again = filled(upload, seed, rows)
        assert [t.data_ptr() for t in again] == [t.data_ptr() for t in first]
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


@pytest.mark.parametrize(
    "array", [np.arange(8), np.arange(6), np.arange(7, dtype=np.int32), np.zeros((7, 1), dtype=np.int64)]
)
def test_another_layout_does_not_fit(array: np.ndarray) -> None:
    upload = StaticUpload(CPU)
    filled(upload, 1, 50)
    upload.again()
    with pytest.raises(MisfitError):
        upload.add(array)


@pytest.mark.parametrize("array", [np.zeros((5, 2), np.int32)[:, 1], np.zeros(0, np.int64), np.zeros((3, 0), np.int32)])
def test_strided_and_empty_arrays_arrive(array: np.ndarray) -> None:
    upload = Upload(META)
    there, after = upload.add(array), upload.add(np.arange(3))
    assert there.get().shape == array.shape and there.get().dtype == torch.from_numpy(array).dtype
    assert after.get().shape == (3,)


def test_more_rows_or_arrays_than_there_is_room_for_do_not_fit() -> None:
    upload = StaticUpload(CPU)
    filled(upload, 1, 50)
    upload.again()
    upload.add(np.arange(7))
    with pytest.raises(MisfitError):
        upload.add(np.zeros((with_room(50) + 1, 3), dtype=np.int32), varies=True)
    upload.again()
    fewer = upload.add(np.arange(7))
    with pytest.raises(MisfitError):
        fewer.get()
    upload.again()
    for array, varies in ((np.arange(7), False), (np.zeros((50, 3), dtype=np.int32), True), (np.arange(5), False)):
        upload.add(array, varies=varies)
    with pytest.raises(MisfitError):
        upload.add(np.arange(5))
