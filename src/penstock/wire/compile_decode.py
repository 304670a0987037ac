"""Generates the decoder of one message version: Python source, compiled once, on first use.

Interpreting a schema field by field costs several microseconds per struct. Instead each version
gets one flat function without calls or branches on the version. A run of fixed-size fields becomes
a single `struct` unpacking, which includes the length that follows the run (or its first byte, if
it is a varint). The code for `exec` is built only from our own schemas; it contains no data from
peers.

The generated function takes (buffer, position, size, budget) and returns (message, position). If
the message has records, the buffer is a memoryview, and the records are slices of it. Otherwise it
is bytes, which are faster to read. For bytes that end too early or are not UTF-8 the function
raises IndexError, struct.error or UnicodeDecodeError. `codec` turns these into ProtocolError, so
valid messages pay nothing for the checks.


Variables of the generated code: b the buffer, p the position, z its size, left the budget, n a
length or count, e an end, t a tag count, g a tag; o0, o1... the object being filled at each depth.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Layout
from typing import Any

from penstock.wire import primitives
from penstock.wire.primitives import ARRAY_UNPACKERS, FORMATS, Buffer
from penstock.wire.schema.notation import Field, MessageSchema, Struct

Decoder = Callable[[Buffer, int, int, int], tuple[Any, int]]


def compile_decoder(schema: MessageSchema, message_class: type, version: int) -> Decoder:
    writer = _Writer(schema, message_class, version)
    source = writer.source()
    code = compile(source, f"<decoder of {schema.name} v{version}>", "exec")
    exec(code, writer.names)  # noqa: S102 -- see above
    decoder: Decoder = writer.names["decode"]
    return decoder


class _Writer:
    def __init__(self, schema: MessageSchema, message_class: type, version: int) -> None:
        self.schema = schema
        self.version = version
        self.flexible = schema.flexible.cover(version)
        self.names: dict[str, Any] = {
            "new": object.__new__,
            "uvarint": primitives.decode_uvarint,
            "skip_tags": primitives.skip_tags,
            "too_short": primitives.too_short,
            "too_many": primitives.too_many,
            "too_long": primitives.too_long,
            "not_nullable": primitives.not_nullable,
            "wrong_size": primitives.wrong_size,
            schema.root.name: message_class,
        }
        for struct in schema.structs():
            self.names[struct.name] = getattr(message_class, struct.name)
        self.lines = ["def decode(b, p, z, left):"]
        self.indent = 1
        self.depth = 0
        self.run: list[tuple[str, str]] = []

    def source(self) -> str:
        self.struct(self.schema.root, "o0")
        self.emit("return o0, p")
        return "\n".join(self.lines)

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def flush(self) -> None:
        """Emits the unpacking of the fixed-size fields collected so far."""
        if not self.run:
            return
        if self.run[0][0] == "B":
            self.emit(f"{self.run[0][1]} = b[p]")
            self.emit("p += 1")
        else:
            layout = Layout(">" + "".join(code for code, _ in self.run))
            name = "unpack_" + "".join(code for code, _ in self.run).replace("?", "o")
            self.names[name] = layout.unpack_from
            targets = ", ".join(target for _, target in self.run)
            self.emit(f"{targets}{',' * (len(self.run) == 1)} = {name}(b, p)")
            self.emit(f"p += {layout.size}")
        self.run.clear()

    def length(self, code: str, name: str = "n") -> None:
        """Emits the reading of a length: a varint in flexible versions, else in format `code`."""
        self.run.append(("B" if self.flexible else code, name))
        self.flush()
        if self.flexible:
            self.emit(f"if {name} > 127:")
            self.emit(f"    {name}, p = uvarint(b, p - 1)")

    def struct(self, struct: Struct, target: str) -> None:
        self.emit(f"{target} = new({struct.name})")
        present = [field for field in struct.fields if field.versions.cover(self.version)]
        self.defaults([f for f in struct.fields if f not in present or f.tag is not None], target)
        for field in present:
            if field.tag is None:
                self.field(field, f"{target}.{field.attribute}", f"{struct.name}.{field.name}")
        if self.flexible:
            self.tags([field for field in present if field.tag is not None], target, struct.name)
        self.flush()

    def defaults(self, fields: list[Field], target: str) -> None:
        by_value: dict[str, list[str]] = {}
        for field in fields:
            attribute = f"{target}.{field.attribute}"
            if isinstance(field.default, list):
                self.emit(f"{attribute} = []")
            elif field.has_struct_default():
                self.emit(f"{attribute} = {field.type}()")
            else:
                by_value.setdefault(repr(field.default), []).append(attribute)
        for value, attributes in by_value.items():
            self.emit(f"{' = '.join(attributes)} = {value}")

    def tags(self, fields: list[Field], target: str, path: str) -> None:
        self.run.append(("B", "t"))
        self.flush()
        self.emit("if t:")
        self.indent += 1
        if not fields:
            self.emit("p, left = skip_tags(b, p - 1, z, left)")
            self.indent -= 1
            return
        self.emit("if t > 127:")
        self.emit("    t, p = uvarint(b, p - 1)")
        self.emit("left -= t")
        self.emit(f"if left < 0: raise too_many({path!r}, t)")
        self.emit("for _ in range(t):")
        self.indent += 1
        self.emit("g, p = uvarint(b, p)")
        self.emit("n, p = uvarint(b, p)")
        end = f"e{self.depth}"
        self.emit(f"{end} = p + n")
        self.emit(f"if {end} > z: raise too_short({path!r})")
        for number, field in enumerate(fields):
            self.emit(f"{'elif' if number else 'if'} g == {field.tag}:")
            self.indent += 1
            self.field(field, f"{target}.{field.attribute}", f"{path}.{field.name}")
            self.flush()
            self.indent -= 1
        self.emit(f"else: p = {end}")
        self.emit(f"if p != {end}: raise wrong_size({path!r})")
        self.indent -= 2

    def field(self, field: Field, target: str, path: str) -> None:
        nullable = field.nullable.cover(self.version)
        if field.is_array:
            self.array(field, target, path, nullable)
        elif field.struct is not None:
            self.nested(field.struct, target, path, nullable)
        else:
            self.value(field.type, target, path, nullable)

    def value(self, type_name: str, target: str, path: str, nullable: bool) -> None:
        if type_name in FORMATS:
            self.run.append((FORMATS[type_name], target))
            return
        is_string = type_name == "string"
        self.length("h" if is_string else "i")
        if self.flexible and is_string:
            self.emit(f"    if n > 32768: raise too_long({path!r}, n - 1)")
        self.emit("if n:" if self.flexible else "if n >= 0:")
        self.emit("    e = p + n - 1" if self.flexible else "    e = p + n")
        self.emit(f"    if e > z: raise too_short({path!r})")
        copied = "bytes(b[p:e])" if self.schema.has_records() else "b[p:e]"
        reads = {"string": copied + ".decode()", "bytes": copied, "records": "b[p:e]"}
        self.emit(f"    {target} = {reads[type_name]}")
        self.emit("    p = e")
        self.null(target, path, nullable)

    def null(self, target: str, path: str, nullable: bool) -> None:
        if nullable:
            self.emit("else:" if self.flexible else "elif n == -1:")
            self.emit(f"    {target} = None")
        if not (nullable and self.flexible):
            self.emit(f"else: raise not_nullable({path!r})")

    def nested(self, struct: Struct, target: str, path: str, nullable: bool) -> None:
        if nullable:
            self.run.append(("b", "n"))
            self.flush()
            self.emit("if n == -1:")
            self.emit(f"    {target} = None")
            self.emit(f"elif n != 1: raise not_nullable({path!r})")
            self.emit("else:")
            self.indent += 1
        self.depth += 1
        inner = f"o{self.depth}"
        self.struct(struct, inner)
        self.emit(f"{target} = {inner}")
        self.depth -= 1
        self.indent -= nullable

    def array(self, field: Field, target: str, path: str, nullable: bool) -> None:
        self.length("i")
        if self.flexible:
            self.emit("n -= 1")
        self.emit("if n >= 0:")
        self.indent += 1
        least = self.least_bytes(field.type, field.struct)
        self.emit("left -= n")
        self.emit(f"if left < 0 or n * {least} > z - p: raise too_many({path!r}, n)")
        if field.type in FORMATS and field.type != "uuid":
            name = f"array_{field.type}"
            self.names[name] = ARRAY_UNPACKERS[field.type]
            self.emit(f"{target} = [*{name}[n](b, p)]")
            self.emit(f"p += n * {least}")
        else:
            self.elements(field, target, path)
        self.indent -= 1
        if nullable:
            self.emit("elif n == -1:")
            self.emit(f"    {target} = None")
        self.emit(f"else: raise not_nullable({path!r})")

    def elements(self, field: Field, target: str, path: str) -> None:
        self.depth += 1
        items, item = f"x{self.depth}", f"o{self.depth}"
        self.emit(f"{items} = {target} = []")
        self.emit("for _ in range(n):")
        self.indent += 1
        if field.struct is None:
            self.value(field.type, item, path, nullable=False)
        else:
            self.struct(field.struct, item)
        self.flush()
        self.emit(f"{items}.append({item})")
        self.indent -= 1
        self.depth -= 1

    def least_bytes(self, type_name: str, struct: Struct | None) -> int:
        """Returns the least number of bytes of an element, which limits the count of an array."""
        if struct is None:
            if type_name in FORMATS:
                return Layout(">" + FORMATS[type_name]).size
            return 1 if self.flexible else {"string": 2}.get(type_name, 4)
        total = int(self.flexible)
        for field in struct.fields:
            if field.tag is not None or not field.versions.cover(self.version):
                continue
            if field.is_array:
                total += 1 if self.flexible else 4
            elif field.struct is not None and field.nullable.cover(self.version):
                total += 1
            else:
                total += self.least_bytes(field.type, field.struct)
        return max(total, 1)
