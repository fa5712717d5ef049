"""docs/commands.md is what the program says today, and has every command with an example."""

from __future__ import annotations

import re

import pytest

from docs import commands
from gpuctl.cli.program import COMMANDS


def test_the_page_is_current() -> None:
    assert commands.PAGE.read_text(encoding="utf-8") == commands.page(), "run: .venv/bin/python docs/commands.py"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_a_section_with_an_example(name: str) -> None:
    sections = re.split(r"^## ", commands.PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    section = next(section for section in sections if section.startswith(f"gpuctl {name}\n"))
    example = re.search(r"Examples?:(.*?)```", section, re.DOTALL)
    assert example and f"gpuctl {name}" in example[1]
    assert commands.BESIDE[name].strip()


def test_nothing_is_told_of_commands_that_do_not_exist() -> None:
    assert set(commands.BESIDE) <= set(COMMANDS)
