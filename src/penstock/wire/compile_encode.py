"""Generates the encoder of one message version. `compile_decode` explains why code is generated.

The generated function takes (message, start) and returns a list of buffers. `start` is a bytearray
to append to, and becomes the first buffer. Large `records` are separate buffers and are not copied,
for a writer that can gather. Everything else is appended to the bytearrays between them.

If a version lacks a field, the field's value is checked and not silently lost: unless the field is
ignorable, a value other than the default raises a ProtocolError that names the field.

Variables of the generated code: a the bytearray, parts the finished buffers, n a length, d encoded
bytes; o0, o1... the object being written at each depth.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Layout
from typing import Any, Final

from penstock.wire import primitives
from penstock.wire.primitives import ARRAY_PACKERS, FORMATS, Buffer
from penstock.wire.schema.notation import NO_VERSIONS, Field, MessageSchema, Struct

Encoder = Callable[[Any, bytearray], list[Buffer]]

RECORDS_COPIED_MAX: Final = 4_096
"""Records up to this size are cheaper to copy than to pass on as a separate buffer."""


def compile_encoder(schema: MessageSchema, version: int) -> Encoder:
    writer = _Writer(schema, version)
    source = writer.source()
    code = compile(source, f"<encoder of {schema.name} v{version}>", "exec")
    exec(code, writer.names)  # noqa: S102 -- built only from our schemas, see compile_decode
    encoder: Encoder = writer.names["encode"]
    return encoder


class _Writer:
    def __init__(self, schema: MessageSchema, version: int) -> None:
        self.schema = schema
        self.version = version
        self.flexible = schema.flexible.cover(version)
        self.names: dict[str, Any] = {
            "uvarint": primitives.encode_uvarint,
            "string_prefix": primitives.string_prefix,
            "not_nullable": primitives.not_nullable,
            "not_in_version": primitives.not_in_version,
            "wrong_uuid": primitives.wrong_uuid,
            "ZERO": b"\0",
        }
        self.lines = ["def encode(o0, a):", "    parts = []"]
        self.indent = 1
        self.depth = 0
        self.run: list[tuple[str, str]] = []

    def source(self) -> str:
        self.struct(self.schema.root, "o0")
        self.flush()
        self.emit("parts.append(a)")
        self.emit("return parts")
        return "\n".join(self.lines)

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def packed(self, *more: tuple[str, str]) -> str:
        """Returns the statement that appends the collected fixed-size values and `more`."""
        run = [*self.run, *more]
        if len(run) == 1 and run[0][0] == "B":
            return f"a.append({run[0][1]})"
        if len(run) == 1 and run[0][0] == "x":
            return "a += ZERO"
        codes = "".join(code for code, _ in run)
        name = "pack_" + codes.replace("?", "o")
        self.names[name] = Layout(">" + codes).pack
        return f"a += {name}({', '.join(value for code, value in run if code != 'x')})"

    def flush(self) -> None:
        if self.run:
            self.emit(self.packed())
            self.run.clear()

    def struct(self, struct: Struct, source: str) -> None:
        tagged = []
        for field in struct.fields:
            value = f"{source}.{field.attribute}"
            path = f"{struct.name}.{field.name}"
            if not field.versions.cover(self.version):
                if not field.ignorable:
                    self.emit(f"if {self.differs(field, value)}:")
                    self.emit(f"    raise not_in_version({path!r}, {self.version})")
            elif field.tag is not None:
                tagged.append(field)
            else:
                self.field(field, value, path)
        if self.flexible:
            self.tags(tagged, source, struct.name)

    def differs(self, field: Field, value: str) -> str:
        """Returns an expression that tests whether the value differs from the default."""
        if isinstance(field.default, list):
            return f"{value} or {value} is None"
        if field.default is None:
            return f"{value} is not None"
        return f"{value} != {field.default!r}"

    def tags(self, fields: list[Field], source: str, path: str) -> None:
        if not fields:
            self.run.append(("x", ""))
            return
        tests = [self.differs(field, f"{source}.{field.attribute}") for field in fields]
        self.emit(f"if {' or '.join(tests)}:")
        self.indent += 1
        if self.run:
            self.emit(self.packed())
        before = self.run
        self.run = []
        outer, found = f"a{self.depth}", f"tags{self.depth}"
        self.emit(f"{outer} = a")
        self.emit(f"{found} = []")
        for field, test in zip(fields, tests, strict=True):
            self.emit(f"if {test}:")
            self.indent += 1
            self.emit("a = bytearray()")
            self.field(field, f"{source}.{field.attribute}", f"{path}.{field.name}")
            self.flush()
            self.emit(f"{found}.append(({field.tag}, a))")
            self.indent -= 1
        self.emit(f"a = {outer}")
        self.emit(f"a += uvarint(len({found}))")
        self.emit(f"for g, d in sorted({found}):")
        self.emit("    a += uvarint(g) + uvarint(len(d))")
        self.emit("    a += d")
        self.indent -= 1
        self.run = before
        self.emit("else:")
        self.emit("    " + self.packed(("x", "")))
        self.run = []

    def field(self, field: Field, value: str, path: str) -> None:
        nullable = field.nullable.cover(self.version)
        if field.type == "uuid" and not field.is_array:
            self.emit(f"if len({value}) != 16: raise wrong_uuid({path!r})")
        if field.type in FORMATS and not field.is_array:
            self.run.append((FORMATS[field.type], value))
        elif field.is_struct():
            self.nested(field, value, nullable)
        elif field.nullable != NO_VERSIONS:
            self.emit(f"v = {value}")
            self.emit("if v is None:")
            if nullable:
                self.emit("    " + self.null_prefix(field))
            else:
                self.emit(f"    raise not_nullable({path!r})")
            self.emit("else:")
            self.indent += 1
            self.sized(field, "v", path)
            self.indent -= 1
        else:
            self.sized(field, value, path)

    def null_prefix(self, field: Field) -> str:
        if self.flexible:
            return self.packed(("x", ""))
        code = "h" if field.type == "string" and not field.is_array else "i"
        return self.packed((code, "-1"))

    def sized(self, field: Field, value: str, path: str) -> None:
        """Emits the code for a value with a length before it."""
        if field.is_array and field.type in FORMATS and field.type != "uuid":
            self.flush()
            name = f"array_{field.type}"
            self.names[name] = ARRAY_PACKERS[field.type, self.flexible]
            self.emit(f"x = {value}")
            self.emit(f"a += {name}[len(x)](*x)")
        elif field.is_array:
            self.elements(field, value, path)
        elif field.type == "string":
            self.string(value)
        elif field.type == "bytes":
            self.emit(f"d = {value}")
            self.prefix("len(d)", "i", "uvarint(n + 1)")
            self.emit("a += d")
        else:
            self.records(value)

    def string(self, value: str) -> None:
        self.emit(f"d = {value}.encode()")
        self.prefix("len(d)", "h", "string_prefix(n)")
        self.emit("a += d")

    def prefix(self, length: str, code: str, long: str) -> None:
        """Emits the code for a length, packed together with the fixed-size values before it."""
        if not self.flexible:
            self.run.append((code, length))
            self.flush()
            return
        if length != "n":
            self.emit(f"n = {length}")
        self.emit("if n < 127: " + self.packed(("B", "n + 1")))
        self.emit("else:")
        self.indent += 1
        self.flush()
        self.emit(f"a += {long}")
        self.indent -= 1

    def records(self, value: str) -> None:
        self.emit(f"r = {value}")
        self.emit("if type(r) is not list: r = [r]")
        self.emit("n = sum(map(len, r))")
        self.prefix("n", "i", "uvarint(n + 1)")
        self.emit(f"if n <= {RECORDS_COPIED_MAX}:")
        self.emit("    for d in r: a += d")
        self.emit("else:")
        self.emit("    parts.append(a)")
        self.emit("    parts += r")
        self.emit("    a = bytearray()")

    def nested(self, field: Field, value: str, nullable: bool) -> None:
        assert field.struct is not None
        self.depth += 1
        inner = f"o{self.depth}"
        self.emit(f"{inner} = {value}")
        if nullable:
            self.emit(f"if {inner} is None: " + self.packed(("b", "-1")))
            self.emit("else:")
            self.indent += 1
            self.run.append(("b", "1"))
        self.struct(field.struct, inner)
        self.flush()
        self.indent -= nullable
        self.depth -= 1

    def elements(self, field: Field, value: str, path: str) -> None:
        self.depth += 1
        items, item = f"x{self.depth}", f"o{self.depth}"
        self.emit(f"{items} = {value}")
        self.prefix(f"len({items})", "i", "uvarint(n + 1)")
        self.emit(f"for {item} in {items}:")
        self.indent += 1
        if field.struct is not None:
            self.struct(field.struct, item)
        elif field.type == "string":
            self.string(item)
        else:
            self.emit(f"if len({item}) != 16: raise wrong_uuid({path!r})")
            self.run.append((FORMATS[field.type], item))
        self.flush()
        self.indent -= 1
        self.depth -= 1
