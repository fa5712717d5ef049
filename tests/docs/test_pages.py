"""What the pages say can be followed: links lead somewhere, files load, every key is documented, addresses are free."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuctl.spec import sections
from gpuctl.spec.fields import Callback
from gpuctl.spec.inventory import NodeKeys, Simulate, load_inventory
from gpuctl.spec.job import Job, load_job
from gpuctl.wire.names import EventType, FailureClass, State

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN = [*PAGES, ROOT / "inventory.yaml", ROOT / "Makefile", *sorted((ROOT / "jobs").glob("*.yaml"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: {link}"
        assert not anchor or anchor in anchors(target), f"{name(page)}: {link} has no such heading"


def test_every_page_can_be_found_from_the_readme() -> None:
    found = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name(page) for page in PAGES[1:] if f"({name(page)}" not in found] == []


def examples() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for number, (language, text) in enumerate(FENCED.findall(page.read_text(encoding="utf-8"))):
            if language == "yaml":
                yield f"{name(page)}-{number}", text


@pytest.mark.parametrize(("where", "text"), [pytest.param(*each, id=each[0]) for each in examples()])
def test_files_that_are_shown_load(where: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "shown.yaml"
    if re.search("^name:", text, re.MULTILINE):
        path.write_text(text)
        load_job(path)
    elif re.search("^nodes:", text, re.MULTILINE):
        path.write_text(text)
        load_inventory(path)
    else:
        path.write_text("name: piece\ncommand: 'true'\n" + text)
        load_job(path)


def keys_of(*models: type) -> list[str]:
    fields = [field for model in models for field in model.model_fields.items()]  # type: ignore[attr-defined]
    return sorted({field.alias or key for key, field in fields})


JOB_SECTIONS = (
    Job, sections.Stop, sections.OnOom, sections.Relaunches, sections.OnBusy, sections.Resume, sections.Outputs,
    sections.Watch, Callback,
)  # fmt: skip


@pytest.mark.parametrize("key", keys_of(*JOB_SECTIONS))
def test_every_key_of_a_job_is_documented(key: str) -> None:
    text = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    assert re.search(rf"(`|\b){key}(`|:)", text), key


@pytest.mark.parametrize("key", keys_of(NodeKeys, Simulate))
def test_every_key_of_an_inventory_is_documented(key: str) -> None:
    assert f"| `{key}` |" in (ROOT / "docs" / "inventory.md").read_text(encoding="utf-8"), key


def test_every_class_state_and_event_is_documented() -> None:
    jobs, architecture = ((ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("jobs.md", "architecture.md"))
    assert [each for each in FailureClass.__args__ if f"`{each}`" not in jobs] == []
    assert [each for each in (*State.__args__, *EventType.__args__) if f"`{each}`" not in architecture] == []


def test_every_job_that_ships_is_in_the_recipes() -> None:
    text = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    assert [path.name for path in (ROOT / "jobs").glob("*.yaml") if f"(../jobs/{path.name})" not in text] == []


@pytest.mark.parametrize("path", WRITTEN, ids=name)
def test_addresses_are_those_kept_for_documentation(path: Path) -> None:
    found = re.findall(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", path.read_text(encoding="utf-8"))
    assert [address for address in found if not address.startswith(("192.0.2.", "127.0.0.1"))] == []
