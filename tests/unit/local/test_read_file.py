"""Files as people have them: how each is written is found out, and what it holds is what was meant."""

from __future__ import annotations

import gzip
import json
import random
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.core.errors import RequestError
from rivertwice.local import read_file
from rivertwice.local.read_file import (
    FileOptions,
    as_fields,
    describe_broken,
    file_lines,
    number_in,
    sample_file,
    sniff,
)

SHOP = "Bestellung;Zeitpunkt;Ort;Betrag;Menge\n7;31.12.2026 14:30;Köln;1.234,50 €;3\n8;01.02.2026 9:05;Bonn;2,00 €;12\n"
MEANT = [
    {"bestellung": 7, "zeitpunkt": "2026-12-31T14:30:00", "ort": "Köln", "betrag": Decimal("1234.50"), "menge": 3},
    {"bestellung": 8, "zeitpunkt": "2026-02-01T09:05:00", "ort": "Bonn", "betrag": Decimal("2.00"), "menge": 12},
]


def read(path: Path, said: FileOptions | None = None) -> list[dict[str, Any]]:
    shape = sniff(path, said)
    return [
        dict(as_fields(line.value, None, shape.time_format)) for line in file_lines(path, shape) if line.broken is None
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
@pytest.mark.parametrize("packed", [None, "gzip", "zstd", "bz2"])
def test_a_german_file_is_what_it_means(tmp_path: Path, encoding: str, delimiter: str, packed: str | None) -> None:
    path, data = tmp_path / "shop.txt", SHOP.replace(";", delimiter).encode(encoding)
    if packed is None:
        path.write_bytes(data)
    else:
        with pa.output_stream(str(path), compression=packed) as file:
            file.write(data)
    assert read(path) == MEANT
    described = sniff(path).describe()
    assert "decimal comma" in described
    assert "Betrag in €" in described
    assert "times as %d.%m.%Y %H:%M" in described


@pytest.mark.parametrize(
    ("text", "meant", "note"),
    [
        (
            'when,price\n"03/14/2026 10:00 PM","$1,234.50"\n',
            {"when": "2026-03-14T22:00:00", "price": Decimal("1234.50")},
            None,
        ),
        ("when,n\n14/03/2026,1\n", {"when": "2026-03-14", "n": 1}, None),
        (
            "when,n\n03/04/2026,1\n",
            {"when": "03/04/2026", "n": 1},
            "may begin with the day or with the month; say --time-format",
        ),
        ("a;b\n1,234;x\n", {"a": Decimal("1.234"), "b": "x"}, "1,234 is read as 1.234; say --decimal . if it is not"),
        ('a,b\n"1,234",x\n', {"a": 1234, "b": "x"}, "1,234 is read as 1234; say --decimal , if it is not"),
        (
            "a;b\n1,5;2.25\n",
            {"a": "1,5", "b": Decimal("2.25")},
            "some numbers have a decimal comma and some a decimal point",
        ),
        ("a\n1\n", {"a": 1}, "has one column"),
        ("code,n\n007,1\n", {"code": "007", "n": 1}, None),
        ("a,b\n1,\n", {"a": 1, "b": None}, None),
    ],
)
def test_what_is_not_certain_is_said_with_what_to_say_instead(
    tmp_path: Path, text: str, meant: dict[str, Any], note: str | None
) -> None:
    path = tmp_path / "f.csv"
    path.write_text(text)
    assert read(path) == [meant]
    notes = sniff(path).notes
    assert (notes == ()) if note is None else (note in " ".join(notes))


def test_what_is_said_is_not_sniffed(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes("a:b:c\n1,234:03/04/2026:ü\n".encode("latin-1"))
    said = FileOptions(":", ",", "%m/%d/%Y", "latin-1")
    assert read(path, said) == [{"a": Decimal("1.234"), "b": "2026-03-04", "c": "ü"}]
    assert said.words() == ["--delimiter", ":", "--decimal", ",", "--time-format", "%m/%d/%Y", "--encoding", "latin-1"]
    for wrong in (FileOptions(delimiter="::"), FileOptions(decimal="x"), FileOptions(encoding="utf-9")):
        with pytest.raises(RequestError, match=r"--(delimiter|decimal|encoding)"):
            sniff(path, wrong)


def test_broken_lines_are_named_by_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text('a,b\n1,2\n"two\nlines",3\n4,5,6\n' + "7,8\n" * 3 + "9,9,9,9\n")
    broken = [line for line in file_lines(path, sniff(path)) if line.broken]
    assert (
        describe_broken(broken) == "line 5: 3 fields, and the header names 2; line 9: 4 fields, and the header names 2"
    )


@pytest.mark.parametrize("size", [1, 7, 300_000])
def test_an_array_is_read_element_by_element(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path, values = tmp_path / "f.json", [{"n": n, "text": "[},{]" * (n % 3), "in": {"x": [1, 2]}} for n in range(40)]
    path.write_text(f" [ {', '.join(json.dumps(value) for value in values)} ] ")
    shape = sniff(path)
    monkeypatch.setattr(read_file, "SNIFFED_BYTES", size)
    assert [line.value for line in file_lines(path, shape)] == values
    path.write_text(json.dumps(values)[:-1])
    last = list(file_lines(path, shape))[-1]
    assert (last.line, last.broken) == (41, "missing: the array has no end")


def test_a_sample_is_of_the_beginning_the_middle_and_the_end_with_the_true_line_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_file, "SNIFFED_BYTES", 1_000)
    for name, header in (("f.csv", "n,line\n"), ("f.jsonl", "")):
        lines = [f"{n},x" if header else json.dumps({"n": n}) for n in range(3_000)]
        lines[5] += ",x,y"
        (tmp_path / name).write_text(header + "\n".join(lines) + "\n")
        sample = sample_file(tmp_path / name, "t", 90)
        numbers = [record.value["n"] for record in sample.records if record.stretch == 1]
        assert {record.stretch for record in sample.records} == {0, 1, 2}
        assert 1_300 < min(numbers) < 1_700
        (reason,) = sample.skipped
        assert f"line {'7' if header else '6'}" in reason
        shape = sniff(tmp_path / name)
        for stretch, line in read_file._sampled(tmp_path / name, shape, 90):
            if line.broken is None:
                assert line.line == line.value["n"] + (2 if header else 1), stretch


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    for name, data, why in (
        ("a.xlsx", b"PK\x03\x04rest", "an Excel workbook"),
        ("b.bin", b"\x00\x01\x02" * 9, "its format is not known"),
        ("c.parquet", b"none", "is not a Parquet file"),
        ("d.csv", b"", "it is empty"),
        ("e.csv.gz", gzip.compress(b"a,b\n1,2\n" * 999)[:40], "cannot be read"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(RequestError, match=why):
            list(file_lines(tmp_path / name, sniff(tmp_path / name)))


@given(
    st.decimals(min_value=-(10**9), max_value=10**9, places=2, allow_nan=False), st.sampled_from("€$"), st.booleans()
)
def test_a_figure_is_the_number_in_every_way_of_writing_it(value: Decimal, sign: str, grouped: bool) -> None:
    english = f"{value:,.2f}" if grouped else f"{value:.2f}"
    german = english.translate(str.maketrans(".,", ",."))
    assert number_in(english) == number_in(german, ",") == value
    assert number_in(f"{sign}{english}" if not english.startswith("-") else f"{english} {sign}", ".", sign) == value
    assert number_in(f"{german} {sign}", ",", sign) == value


def test_no_bytes_stop_the_reading_with_anything_but_a_refusal(tmp_path: Path) -> None:
    path, chance = tmp_path / "f", random.Random(7)
    starts = [
        b"",
        b"{",
        b"[",
        b"a,b\n",
        b"\x1f\x8b",
        b"PAR1",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"BZh",
        b"\x28\xb5\x2f\xfd",
    ]
    for _ in range(600):
        path.write_bytes(
            chance.choice(starts) + bytes(chance.choices(b'{}[],;"\n\x00\xffa1.\\', k=chance.randrange(60)))
        )
        with suppress(RequestError):
            sample_file(path, "t", 10)
