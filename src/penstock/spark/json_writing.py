"""Converts a column of structs to a column of JSON texts, column by column and not row by row.

Every field becomes a column of fragments, which are joined with the punctuation between them. Times
are ISO in UTC with microseconds, dates are ISO, binary is base64, decimals are numbers with all
their digits, and maps are objects. `json_reading` reads all of these back unchanged. A null field
is written as null.

Texts are escaped in a few passes over the whole column, and only if there is something to escape.
JSON cannot represent NaN and infinities, so they are refused, or written as the texts "NaN",
"Infinity" and "-Infinity", as Spark's `to_json` does.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.errors import OptionError, SerializationFailed

_SPECIAL: Final = r'[\x00-\x1f"\\]'
_CONTROL: Final = r"[\x00-\x1f]"
_ESCAPES: Final = {chr(code): json.dumps(chr(code))[1:-1] for code in range(0x20)}
_NULL: Final = "null"


def write_json(column: pa.Array, *, non_finite_as_text: bool = False) -> pa.Array:
    """Returns one text for each value, in UTF-8; null stays null. Raises `SerializationFailed` for
    NaN and infinities, unless they become texts."""
    fragments = _fragments(column, "value", non_finite_as_text)
    return _restored(fragments, column).cast(pa.binary())


def check_json_type(kind: pa.DataType, name: str) -> None:
    """Raises `OptionError` on the driver if a column cannot be written as JSON."""
    if pa.types.is_map(kind) and not pa.types.is_string(kind.key_type):
        raise OptionError(
            f"{name} is a map with keys that are not strings, but JSON needs strings: cast them"
        )
    if pa.types.is_nested(kind):
        for index in range(kind.num_fields):
            field = kind.field(index)
            check_json_type(field.type, f"{name}.{field.name}")
    elif not any(fits(kind) for fits in _PLAIN):
        raise OptionError(f"{name} has the type {kind}, which JSON does not have: cast or drop it")


_PLAIN: Final = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_timestamp,
    pa.types.is_date,
)


def _fragments(column: pa.Array, name: str, lenient: bool) -> pa.Array:
    """Returns JSON for each value. The result for a null does not matter: callers replace it.
    `lenient`: NaN and infinities become texts."""
    kind = column.type
    if pa.types.is_struct(kind):
        return _objects(column, name, lenient)
    if pa.types.is_map(kind):
        return _maps(column, name, lenient)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = _present(column.flatten(), f"{name}[]", lenient)
        return _joined("[", pc.binary_join(_lists(column, items), ","), "]")
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "true", "false")
    if pa.types.is_floating(kind):
        return _numbers(column, name, lenient)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = [v if v is None else b64encode(v).decode("ascii") for v in column.to_pylist()]
        return _joined('"', pa.array(texts, pa.string()), '"')
    if pa.types.is_timestamp(kind):
        return _times(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _joined('"', _escaped(column.cast(pa.string())), '"')
    if pa.types.is_date(kind):
        return _joined('"', column.cast(pa.string()), '"')
    return column.cast(pa.string())


def _numbers(column: pa.FloatingPointArray, name: str, lenient: bool) -> pa.Array:
    texts = column.cast(pa.string())
    is_finite = pc.is_finite(column)
    if pc.all(is_finite).as_py() or len(column) == column.null_count:
        return texts
    if not lenient:
        raise SerializationFailed(
            f"{name} contains NaN or an infinity, which JSON does not have: replace it, for "
            "example with null"
        )
    infinities = pc.if_else(pc.greater(column, 0), '"Infinity"', '"-Infinity"')
    return pc.if_else(is_finite, texts, pc.if_else(pc.is_nan(column), '"NaN"', infinities))


def _objects(column: pa.StructArray, name: str, lenient: bool) -> pa.Array:
    pieces: list[Any] = []
    for index in range(column.type.num_fields):
        field = column.type.field(index)
        label = json.dumps(field.name, ensure_ascii=False)
        pieces += [f"{',' if pieces else '{'}{label}:"]
        pieces += [_present(column.field(index), f"{name}.{field.name}", lenient)]
    if not pieces:
        return pa.array(["{}"] * len(column), pa.string())
    return _joined(*pieces, "}")


def _maps(column: pa.MapArray, name: str, lenient: bool) -> pa.Array:
    column = column.cast(pa.list_(column.type.field(0)))
    entries = column.flatten()
    keys = _joined('"', _escaped(entries.field(0).cast(pa.string())), '":')
    items = _joined(keys, _present(entries.field(1), f"{name}{{}}", lenient))
    return _joined("{", pc.binary_join(_lists(column, items), ","), "}")


def _lists(column: pa.Array, items: pa.Array) -> pa.Array:
    """The column's lists, of other items."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
    ends = pc.cumulative_sum(lengths)
    return pa.ListArray.from_arrays(pa.concat_arrays([pa.array([0], pa.int32()), ends]), items)


def _times(column: pa.Array) -> pa.Array:
    zoned = column.type.tz is not None
    kind = pa.timestamp("us", "UTC" if zoned else None)
    texts = column.cast(kind).cast(pa.string())
    return _joined('"', pc.replace_substring(texts, " ", "T", max_replacements=1), '"')


def _escaped(texts: pa.Array) -> pa.Array:
    if not _any_match(texts, _SPECIAL):
        return texts
    texts = pc.replace_substring(texts, "\\", "\\\\")
    texts = pc.replace_substring(texts, '"', '\\"')
    if _any_match(texts, _CONTROL):
        for character, escape in _ESCAPES.items():
            texts = pc.replace_substring(texts, character, escape)
    return texts


def _any_match(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _present(column: pa.Array, name: str, lenient: bool) -> pa.Array:
    """Returns fragments, with `null` for missing values."""
    fragments = _restored(_fragments(column, name, lenient), column)
    return pc.fill_null(fragments, _NULL) if fragments.null_count else fragments


def _restored(fragments: pa.Array, column: pa.Array) -> pa.Array:
    if not column.null_count:
        return fragments
    return pc.if_else(column.is_valid(), fragments, pa.scalar(None, pa.string()))


def _joined(*pieces: Any) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, "")
