"""The files' JSON Schemas, for editors: `gpuctl schema job|inventory`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from gpuctl.spec.fields import Section
from gpuctl.spec.inventory import NODE_NAME, NodeKeys
from gpuctl.spec.job import Job

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(kind: Literal["job", "inventory"]) -> dict[str, Any]:
    model = Job if kind == "job" else _inventory()
    made = model.model_json_schema(by_alias=True)
    title = "gpuctl job file" if kind == "job" else "gpuctl inventory"
    return {"$schema": _DIALECT} | made | {"title": title}


_NODES: Any = Field(min_length=1, description="the nodes by name", json_schema_extra={"additionalProperties": False})


def _inventory() -> type[Section]:
    """The whole file, which nothing else needs as a model: its nodes are read one by one, defaults merged in."""
    keys: dict[str, Any] = {
        name: (field.annotation, field) for name, field in NodeKeys.model_fields.items() if name != "address"
    }
    defaults = create_model("Defaults", __base__=Section, __doc__="Any node key but address.", **keys)
    name = Annotated[str, Field(pattern=f"^{NODE_NAME.pattern}$")]
    return create_model(
        "InventoryFile",
        __base__=Section,
        __doc__="Which nodes there are and how each is reached.",
        defaults=(defaults, Field(default=None, description="for every node that does not say otherwise")),
        nodes=(dict[name, NodeKeys | None], _NODES),
    )
