"""CONTRACT, "Braces"."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuctl.wire import braces
from tests.parts.words import HOSTILE_WORDS

VALUES = {"batch_size": 4, "lr": 3e-5, "half": 0.5, "verbose": True, "name": "two words", "run": "job-a1b2c3"}


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("--batch-size {batch_size}", "--batch-size 4"),
        ("{batch_size}{batch_size}", "44"),
        ("--lr {lr} --half {half}", "--lr 3e-05 --half 0.5"),
        ("{verbose}", "true"),
        ("--name {name}", "--name 'two words'"),
        ("{{batch_size}}", "{batch_size}"),
        ("{{unknown}}", "{unknown}"),
        ("${HOME} ${batch_size}", "${HOME} ${batch_size}"),
        ("${BATCH:-{batch_size}}", "${BATCH:-4}"),
        ('\'{"lr": 1, "n": {"x": []}}\'', '\'{"lr": 1, "n": {"x": []}}\''),
        ('{"n": {batch_size}}', '{"n": 4}'),
        (
            "{a,b} {1..3} {} { } {batch-size} { batch_size } {batch_size",
            "{a,b} {1..3} {} { } {batch-size} { batch_size } {batch_size",
        ),
        ("awk '{print $1}'", "awk '{print $1}'"),
        ("f() { echo {run}; }", "f() { echo job-a1b2c3; }"),
    ],
)
def test_only_a_known_identifier_in_braces_is_replaced(template: str, rendered: str) -> None:
    assert braces.render(template, VALUES, quote=True) == rendered


def test_values_are_plain_where_no_shell_reads_them() -> None:
    assert braces.render("{name}/{run}", VALUES, quote=False) == "two words/job-a1b2c3"


def test_a_value_is_not_looked_at_for_braces_again() -> None:
    assert braces.render("{a}", {"a": "{b}", "b": "no"}, quote=False) == "{b}"


def test_an_unknown_identifier_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(
        braces.UnknownName, match=r"\{batchsize\} is not a known name: did you mean \{batch_size\}\?"
    ) as caught:
        braces.render("{batchsize}", VALUES, quote=True)
    assert (caught.value.name, caught.value.nearest) == ("batchsize", "batch_size")


def test_an_identifier_like_nothing_known_names_what_is_known() -> None:
    with pytest.raises(braces.UnknownName, match=r"known are \{a\}, \{b\}"):
        braces.render("{zzzzzz}", {"b": 1, "a": 2}, quote=True)


def test_names_lists_each_once_in_order() -> None:
    assert braces.names("{b} {a} {{c}} ${d} {b}") == ["b", "a"]


@pytest.mark.parametrize("word", [word for word in HOSTILE_WORDS if "\udc80" not in word])
def test_a_quoted_value_reaches_a_program_as_it_is(word: str) -> None:
    script = braces.render("printf %s {value}", {"value": word}, quote=True)
    out = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, check=True).stdout
    assert out.decode() == word


@given(st.text(alphabet="{}$abc_1 \n") | st.text())
def test_escaped_text_renders_to_itself(text: str) -> None:
    assert braces.render(braces.escape(text), {}, quote=False) == text


@given(st.text(alphabet="{}$ab"), st.text())
def test_what_is_not_asked_for_changes_nothing(template: str, value: str) -> None:
    """Every name is known, so nothing can fail; and each brace belongs to a name or stays."""
    values = dict.fromkeys(braces.names(template), value)
    rendered = braces.render(template, values, quote=False)
    if not values and "{{" not in template:
        assert rendered == template
