"""Wrong values of keys that take one of several types: the sentence names the key as the file does, and every word that it can have."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from support.known_names import REGISTRIES

from fedatlas import config
from fedatlas.config import ExperimentConfig
from fedatlas.errors import ConfigError
from fedatlas.privacy.central_dp.mechanism import central_dp
from fedatlas.registry import arguments, config_error, field_model, schema_of
from fedatlas.vertical.boosting.settings import secureboost


def bare(hint: Any) -> Any:
    """A type without its annotations."""
    return bare(typing.get_args(hint)[0]) if typing.get_origin(hint) is Annotated else hint


def choices(hint: Any) -> list[Any]:
    """The types of a union, None excepted; one type for any other."""
    hint = bare(hint)
    if typing.get_origin(hint) not in {typing.Union, types.UnionType}:
        return [hint]
    return [each for one in typing.get_args(hint) if one is not type(None) for each in choices(one)]


def fields(model: type[BaseModel], at: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of the fixed tables with their types."""
    for key, field in model.model_fields.items():
        where, inner = f"{at}.{key}" if at else key, field_model(model, key)
        yield where, field.rebuild_annotation()
        if inner is not None:
            yield from fields(inner, where)


def every_union() -> dict[str, Any]:
    """All keys of tables and records that take one of several types."""
    found = dict(fields(ExperimentConfig))
    for table, registry in REGISTRIES.items():
        for name, builder in registry.items():
            found |= {f"{table}.{name}.{key}": hint for key, (hint, _) in schema_of(builder)[0].items()}
    found |= {f"algorithm.secureboost.{key}": hint for key, (hint, _) in schema_of(secureboost)[0].items()}
    return {where: hint for where, hint in found.items() if len(choices(hint)) > 1}


UNIONS = every_union()
WRONG = ("wrng", -3.5, ["x", -3.5, [1]], [["x"]], {"a": "x"}, None)


def test_unions_are_found() -> None:
    assert {"data.test", "privacy.central_dp.clip", "algorithm.fedseq_inter.period", "attack.role"} <= {*UNIONS}


@pytest.mark.parametrize("where", UNIONS)
def test_a_wrong_value_names_the_key_and_all_that_it_can_be(where: str) -> None:
    table, _, key = where.rpartition(".")
    strict = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    fields: Any = {key: (UNIONS[where], ...)}
    model, hints = create_model("OneKey", __config__=strict, **fields), choices(UNIONS[where])
    words = [word for hint in hints if typing.get_origin(hint) is Literal for word in typing.get_args(hint)]
    refused = 0
    for value in WRONG:
        try:
            model.model_validate({key: value})
        except ValidationError as error:
            said, refused = str(config_error(error, table)), refused + 1
            inside = f"{where}.a" if isinstance(value, dict) else where  # a table may be what it takes
            assert said.startswith((f"{where} = ", f"{where}: ", f"{inside} = ")), said
            if isinstance(value, str | float):
                assert all(repr(word) in said for word in words), said
    assert refused


def test_the_sentence_of_a_bound_that_may_adapt() -> None:
    with pytest.raises(
        ConfigError, match=r"^privacy\.central_dp\.clip = 'adaptve': expected a number or 'adaptive' \(did"
    ):
        arguments("privacy.central_dp", central_dp, {"clip": "adaptve", "noise_multiplier": 1.0})
    with pytest.raises(ConfigError, match=r"^attack\.role: its value number 2 is 3, expected a text\.$"):
        config.parse({"attack": [{"name": "label_flip", "role": ["a", 3]}]})
