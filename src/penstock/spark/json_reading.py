"""Converts a column of JSON texts to a column of structs, with Arrow's JSON reader.

A value must be one object whose fields have the types of the schema. Unknown fields are ignored and
missing ones are null. A field of another type makes the record bad, where Spark's `from_json` would
silently make it null. Times and dates are ISO texts, binary is base64, a map is an object.

All values of a column are read at once, as the lines of one text. That fails as a whole if one
value is bad. In that case every value is checked in Python, the values that are certainly bad are
removed, and the rest is read again. This check never rejects a value that Arrow would read, so
whether a value is bad does not depend on the other values. Bad values that the check does not find,
such as half of a surrogate pair, are found by bisection, which is exact and slow.

A value cannot run over into the next one. Each begins and ends with a brace. After an incomplete
value Arrow's reader expects a comma or a bracket, and the opening brace of the next value is an
error. A value with two objects makes the count of rows wrong. But Arrow's reader crashes the
process if there is a `null` between two objects: so values that may contain that are checked first.
"""

from __future__ import annotations

import json
from base64 import b64decode
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.spark.json_check import check_of, leaves

_OBJECT: Final = r"(?s)^\s*\{.*\}\s*$"
_OBJECT_THEN_NULL: Final = r"\}\s*n"
_INFINITY: Final = "Inf"
"""Arrow's reader accepts this as a number; Python's accepts only `Infinity`."""


class JsonReader:
    def __init__(self, target: pa.StructType) -> None:
        kinds = list(leaves(target))
        self._target = target
        self._wire = pa.schema([_wire_field(field) for field in target])
        self._check = check_of(target)
        self._has_maps = any(map(pa.types.is_map, kinds))
        self._parse_float = Decimal if any(map(pa.types.is_decimal, kinds)) else None

    def read(self, texts: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Returns the structs, null where the text is null or bad, and row -> why it is bad."""
        bad: dict[int, str] = {}
        rows = self._objects(texts, bad)
        is_whole = len(rows) == len(texts)
        objects = texts if is_whole else texts.take(rows)
        try:
            structs = self._parse(objects)
        except (ValueError, pa.ArrowException, RecursionError):
            structs, reasons = self._sort_out(objects)
            bad |= {rows[at].as_py(): why for at, why in reasons.items()}
        return (structs if is_whole else _spread(structs, rows, len(texts))), bad

    def _objects(self, texts: pa.Array, bad: dict[int, str]) -> pa.Array:
        """Returns the rows that are safe for Arrow's reader; all others are null or bad."""
        sound = pc.and_(
            pc.match_substring_regex(texts, _OBJECT),
            pc.invert(pc.match_substring_regex(texts, _OBJECT_THEN_NULL)),
        )
        rows = pc.indices_nonzero(sound)
        doubtful = pc.indices_nonzero(pc.invert(sound))
        if not len(doubtful):
            return rows
        cleared = []
        for row, text in zip(doubtful.to_pylist(), texts.take(doubtful).to_pylist(), strict=True):
            if why := _not_an_object(text):
                bad[row] = why
            else:
                cleared.append(row)
        return pa.array(sorted([*rows.to_pylist(), *cleared]), pa.uint64()) if cleared else rows

    def _sort_out(self, texts: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        reasons = {
            at: why for at, text in enumerate(texts.to_pylist()) if (why := self._why_bad(text))
        }
        good = pa.array([at for at in range(len(texts)) if at not in reasons], pa.uint64())
        unforeseen: dict[int, str] = {}
        structs = self._halve(texts.take(good), 0, unforeseen)
        reasons |= {good[at].as_py(): why for at, why in unforeseen.items()}
        return _spread(structs, good, len(texts)), reasons

    def _why_bad(self, text: str) -> str:
        try:
            value = json.loads(text, parse_float=self._parse_float)
        except ValueError as why:
            return "" if _INFINITY in text else f"not JSON: {why}"
        except RecursionError:
            return "nested too deeply" if self._has_maps else ""
        why_not = self._check(value)
        return why_not and f"does not match the schema: {why_not.removeprefix('.')}"

    def _halve(self, texts: pa.Array, first: int, bad: dict[int, str]) -> pa.Array:
        """Reads the texts, and finds the bad ones among them by bisection."""
        if not len(texts):
            return pa.nulls(0, self._target)
        try:
            return self._parse(texts)
        except (ValueError, pa.ArrowException, RecursionError) as error:
            if len(texts) == 1:
                bad[first] = f"does not match the schema: {error}"
                return pa.nulls(1, self._target)
        half = len(texts) // 2
        return pa.concat_arrays(
            [
                self._halve(texts[:half], first, bad),
                self._halve(texts[half:], first + half, bad),
            ]
        )

    def _parse(self, texts: pa.Array) -> pa.Array:
        if self._has_maps:
            texts = pa.array([self._with_lists(text) for text in texts.to_pylist()], pa.string())
        elif pc.any(pc.match_substring(texts, "\n")).as_py():
            # Between tokens a tab means the same; inside a string neither is allowed.
            texts = pc.replace_substring(texts, "\n", "\t")
        if not len(texts):
            return pa.nulls(0, self._target)
        lines = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "\n")[0]
        table = pj.read_json(
            pa.BufferReader(lines.as_buffer()),
            read_options=pj.ReadOptions(use_threads=False, block_size=lines.as_buffer().size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=self._wire,
                unexpected_field_behavior="ignore",
                newlines_in_values=False,
            ),
        )
        if len(table) != len(texts):
            raise pa.ArrowInvalid("more than one JSON object")
        columns = [table.column(name).combine_chunks() for name in self._wire.names]
        return _struct(columns, self._target, None, len(texts))

    def _with_lists(self, text: str) -> str:
        """Returns the text with maps as lists of entries: Arrow's reader cannot read maps."""
        value = json.loads(text, parse_float=self._parse_float)
        return json.dumps(_entries(value, self._target), ensure_ascii=False)


def _spread(structs: pa.Array, rows: pa.Array, length: int) -> pa.Array:
    """Returns an array with each struct at its row, and null in all other rows."""
    if len(structs) == length:
        return structs
    return structs.take(pc.index_in(pa.array(range(length), pa.uint64()), value_set=rows))


def _not_an_object(text: str) -> str:
    """Returns why the text is not a JSON object; empty if it is one."""
    try:
        parsed = json.loads(text)
    except ValueError as why:
        return f"not JSON: {why}"
    except RecursionError:
        return "cannot be checked: nested too deeply"
    return "" if isinstance(parsed, dict) else f"JSON, but not an object: {text[:40]}"


def _entries(value: Any, kind: pa.DataType) -> Any:
    """Returns the value with maps as lists, and without fields that its type does not have."""
    if value is None:
        return None
    if pa.types.is_struct(kind) and isinstance(value, dict):
        fields = map(kind.field, range(kind.num_fields))
        return {field.name: _entries(value.get(field.name), field.type) for field in fields}
    if pa.types.is_map(kind):
        if not isinstance(value, dict):
            raise ValueError("a map must be an object")
        return [
            {"key": key, "value": _entries(item, kind.item_type)} for key, item in value.items()
        ]
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_entries(item, kind.value_type) for item in value]
    if isinstance(value, Decimal):
        return str(value) if pa.types.is_decimal(kind) else float(value)
    return value


# -- from the types that Arrow reads to the types of the schema ------------------------------------


def _wire_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _wire_type(field.type))


def _wire_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date(kind):
        return pa.timestamp("s")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([_wire_field(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_map(kind):
        entry = [("key", pa.string()), ("value", _wire_type(kind.item_type))]
        return pa.list_(pa.struct(entry))
    if pa.types.is_list(kind):
        return pa.list_(_wire_type(kind.value_type))
    return kind


def _finished(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        # Arrow's reader checks the number of digits before it adds zeros after the decimal point.
        array.validate(full=True)
    if array.type == kind and not pa.types.is_nested(kind):
        return array
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = array.to_pylist()
        return pa.array([t if t is None else b64decode(t, validate=True) for t in texts], kind)
    if pa.types.is_struct(kind):
        columns = [array.field(index) for index in range(kind.num_fields)]
        return _struct(columns, kind, array.is_null(), len(array))
    if pa.types.is_map(kind):
        keys = _finished(array.values.field("key"), kind.key_type)
        items = _finished(array.values.field("value"), kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=array.is_null())
    if pa.types.is_list(kind):
        items = _finished(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=array.is_null())
    return array.cast(kind)


def _struct(
    columns: list[pa.Array], kind: pa.StructType, mask: pa.Array | None, length: int
) -> pa.Array:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    if not fields:
        return pa.array([{}] * length, kind)
    for field, column in zip(fields, columns, strict=True):
        missing = column.is_null() if mask is None else pc.and_not(column.is_null(), mask)
        if not field.nullable and pc.any(missing).as_py():
            raise pa.ArrowInvalid(f"{field.name} is null, but NOT NULL in the schema")
    finished = [
        _finished(column, field.type) for field, column in zip(fields, columns, strict=True)
    ]
    return pa.StructArray.from_arrays(finished, fields=fields, mask=mask)
