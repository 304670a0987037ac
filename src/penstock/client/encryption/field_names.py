"""Which fields a codec writes, as far as its schema or model says it. Pure.

A wrong name of an encrypted field is found here when the program starts, and not at the first
value. What cannot be known passes: the values themselves are checked when they are sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, get_args

from penstock.client.encryption.fields import FieldPath, FieldsCodec
from penstock.client.errors import OptionError
from penstock.client.serializers import Avro, Pydantic


def check_names(codec: FieldsCodec, paths: Collection[FieldPath]) -> None:
    """Raises `OptionError` for a path that the codec never writes.

    Also raises it for a field of a pydantic model that is read by another name than it is written
    with: a person who can write to the topic could add a plain field with the other name.
    """
    for path in paths:
        if type(codec) is Avro:
            _check_avro(codec._codec._schema, path, path.names)
        elif type(codec) is Pydantic:
            _check_model(codec._model, path, path.names)


def _check_avro(schema: Any, path: FieldPath, names: Sequence[str]) -> None:
    """Leaves out what is no record: a union of several records, or a reference to a record."""
    if isinstance(schema, list):
        branches = [each for each in schema if each != "null"]
        schema = branches[0] if len(branches) == 1 else None
    if not isinstance(schema, Mapping) or schema.get("type") != "record" or not names:
        return
    kinds = {each["name"]: each["type"] for each in schema["fields"]}
    if names[0] not in kinds:
        raise _unknown(path, "schema", kinds)
    _check_avro(kinds[names[0]], path, names[1:])


def _check_model(model: Any, path: FieldPath, names: Sequence[str]) -> None:
    own = model.__pydantic_root_model__ or model.__pydantic_decorators__.model_serializers
    if not names or own:
        return  # the model decides itself what is written
    config = model.model_config
    by_alias = bool(config.get("serialize_by_alias"))
    written = {
        (by_alias and found.serialization_alias) or name: name
        for name, found in model.model_fields.items()
        if not found.exclude
    }
    computed = {
        (by_alias and found.alias) or name for name, found in model.model_computed_fields.items()
    }
    first = names[0]
    if first not in written:
        if first not in computed and config.get("extra") != "allow":
            raise _unknown(path, "model", [*written, *computed])
        return
    field = model.model_fields[written[first]]
    others = set(_names_read(written[first], field, config)) - {first}
    if others:
        raise OptionError(
            f"the field {path} is written as {first}, but is also read as {min(others)}: anyone "
            "could add a plain field of that name. Give the field one name for both"
        )
    inner = _model_in(field.annotation)
    if inner is not None:
        _check_model(inner, path, names[1:])


def _names_read(name: str, field: Any, config: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names under which pydantic looks for the field."""
    alias = field.validation_alias
    if alias is None:
        yield name
        return
    if config.get("validate_by_name") or config.get("populate_by_name"):
        yield name
    if config.get("validate_by_alias", True):
        for each in getattr(alias, "choices", None) or [alias]:
            yield each if isinstance(each, str) else str(each.path[0])


def _model_in(annotation: Any) -> Any:
    """Returns the pydantic model of a field, or None if it has none or several."""
    kinds = [each for each in get_args(annotation) or (annotation,) if each is not type(None)]
    return kinds[0] if len(kinds) == 1 and hasattr(kinds[0], "model_fields") else None


def _unknown(path: FieldPath, where: str, names: Collection[str]) -> OptionError:
    return OptionError(
        f"there is no field {path} in what the {where} writes: it has {', '.join(sorted(names))}"
    )
