"""YAML with the scalars of 1.2's core schema, lines, and no key twice."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gpuctl.errors import BadFile, UsageError
from gpuctl.spec import document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-5", 3e-5), ("1E3", 1000.0), (".5", 0.5), ("5.", 5.0), ("-1.5", -1.5), ("+1", 1), ("007", 7), ("0o17", 15),
        ("0x1F", 31), ("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("-.inf", -math.inf),
    ],
)  # fmt: skip
def test_plain_scalars_of_yaml_1_2(text: str, value: object) -> None:
    assert document.scalar(text) == value
    assert type(document.scalar(text)) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "on",
        "off",
        "yes",
        "no",
        "y",
        "n",
        "1:30:00",
        "1_000",
        "0b11",
        "2024-01-01",
        "tRue",
        "e5",
        "1e",
        "-",
        ".",
        "0o8",
        "=",
        "<<",
    ],
)
def test_what_yaml_1_1_would_convert_is_text(text: str) -> None:
    assert document.scalar(text) == text


def test_nan_is_a_number() -> None:
    assert math.isnan(document.scalar(".nan"))  # type: ignore[arg-type]


def test_the_same_scalars_in_a_file() -> None:
    found = document.parse("{a: 3e-5, b: on, c: 1:30:00, d: '5', e: !!str 5, f: !!int '5', g: no, h: [1, x]}", "f")
    assert found.data == {"a": 3e-5, "b": "on", "c": "1:30:00", "d": "5", "e": "5", "f": 5, "g": "no", "h": [1, "x"]}
    assert found.faults == []


def test_keys_are_text_as_written() -> None:
    assert document.parse("{on: 1, 1: 2, null: 3, 1.10: 4}", "f").data == {"on": 1, "1": 2, "null": 3, "1.10": 4}


def test_each_value_knows_its_line() -> None:
    found = document.parse("a: 1\nb:\n  - x\n  - y\nc: {d: 5,\n  e: 6}\n", "f")
    assert [found.line(place) for place in [("a",), ("b",), ("b", 1), ("c", "d"), ("c", "e")]] == [1, 2, 4, 5, 6]
    assert found.line(("c", "missing")) == 5
    assert found.line(("nothing",)) == 1


def test_a_key_that_stands_twice_is_a_fault_that_names_both_lines() -> None:
    found = document.parse("a: 1\nb: {c: 1,\n  c: 2}\na: 3\n", "f.yaml")
    assert [str(fault) for fault in found.faults] == [
        "f.yaml:3: b.c: stands twice: already in line 2",
        "f.yaml:4: a: stands twice: already in line 1",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2\n", "f.yaml:2: not YAML: "),
        ("a: b: c\n", "f.yaml:1: not YAML: "),
        ("\ta: 1\n", "f.yaml:1: not YAML: "),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: not YAML: "),
        ("a: *nowhere\n", "f.yaml:1: not YAML: "),
        ("a: 1\nb: \x00\n", "f.yaml:2: not YAML: the character U+0000"),
        ("[" * 5000, "f.yaml: nested too deeply"),
    ],
)
def test_what_is_no_yaml_says_where(text: str, message: str) -> None:
    with pytest.raises(BadFile) as caught:
        document.parse(text, "f.yaml")
    assert caught.value.what.startswith(message)
    assert caught.value.exit_code == 2


def test_tags_are_not_obeyed() -> None:
    found = document.parse("a: !!python/name:os.system\nb: !secret x\n", "f.yaml")
    assert [fault.line for fault in found.faults] == [1, 2]


def test_a_key_that_is_no_scalar_is_a_fault() -> None:
    assert "expected a name as key" in str(document.parse("? [a, b]\n: 1\n", "f").faults[0])


def test_anchors_work_and_loops_do_not() -> None:
    assert document.parse("{a: &x [1], b: *x}", "f").data == {"a": [1], "b": [1]}
    assert "an alias to itself" in str(document.parse("a: &x [1, *x]", "f").faults[0])


def test_aliases_of_aliases_do_not_fill_the_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(BadFile, match="more than"):
        document.parse("\n".join(lines), "f")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: there is no such job file"):
        document.read(tmp_path / "none.yaml", kind="job file")
    with pytest.raises(UsageError, match="can't be read: Is a directory"):
        document.read(tmp_path, kind="job file")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: gr\xfc\xdfe\n")
    with pytest.raises(BadFile, match=r"latin\.yaml:2: not UTF-8"):
        document.read(tmp_path / "latin.yaml", kind="job file")


def test_files_of_other_systems(tmp_path: Path) -> None:
    (tmp_path / "windows.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: |\r\n  x\r\n  y\r\n")
    assert document.read(tmp_path / "windows.yaml", kind="job file").data == {"a": 1, "b": "x\ny\n"}


def test_dotted_keys() -> None:
    assert document.dotted(("watch", "logs", 0)) == "watch.logs[0]"
