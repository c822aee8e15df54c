"""Which byte of `offsets/N` the fault case changes: of the class it says, and by one bit."""

from __future__ import annotations

import random

import pytest

from lab.faults.cases_offsets import POSITIONS, bytes_of, flip

TEXT = b'v1\n{"batchWatermarkMs":1700000000123,"batchTimestampMs":5,"conf":{"a":"b"}}\n{"lab-1":{"0":40,"1":7}}'


def test_each_class_has_its_own_bytes() -> None:
    assert bytes(TEXT[at] for at in bytes_of(TEXT, "offset")) == b"407"
    assert bytes(TEXT[at] for at in bytes_of(TEXT, "watermark")) == b"1700000000123"
    assert set(bytes(TEXT[at] for at in bytes_of(TEXT, "structure"))) == set(b'{}":,')


@pytest.mark.parametrize("position", POSITIONS)
def test_one_byte_is_changed_by_one_bit_and_a_digit_stays_a_digit(tmp_path, position) -> None:
    path = tmp_path / "7"
    for seed in range(40):
        path.write_bytes(TEXT)
        told = flip(path, position, random.Random(seed))
        data = path.read_bytes()
        differ = [at for at in range(len(TEXT)) if data[at] != TEXT[at]]
        assert len(differ) == 1
        assert differ[0] in bytes_of(TEXT, position)
        assert (data[differ[0]] ^ TEXT[differ[0]]).bit_count() == 1
        assert told.startswith(f"offsets/7, {position}")
        if position != "structure":
            assert chr(data[differ[0]]).isdigit()
