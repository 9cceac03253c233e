"""The dataclass that a script reads its hyperparameters into, rebuilt from its syntax.

The job's own reader (``smddp.job.hyperparameters``) then checks the hyperparameters with it, as in the job. A
part that the syntax does not decide gives no problem: a field of an unknown type takes every value, and a class with
an unknown base, or made otherwise, is not read at all.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import pathlib
import typing
from typing import Any

from smddp.python_syntax import call_parser
from smddp.script_syntax.modules import Modules, PythonModule

_PLAIN: dict[str, Any] = {
    **{kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict, object)},
    **{f"typing.{name}": getattr(typing, name) for name in ("Any", "Optional", "Union", "Literal")},
    **{f"typing.{name}": kind for name, kind in (("List", list), ("Tuple", tuple), ("Dict", dict))},
    **{f"pathlib.{name}": getattr(pathlib, name) for name in ("Path", "PurePath", "PosixPath", "PurePosixPath")},
    "dataclasses.KW_ONLY": dataclasses.KW_ONLY,
}
"""The types that a hyperparameter's annotation names, by their full names."""
_ENUMS: dict[str, type | None] = {
    "enum.Enum": None,
    "enum.IntEnum": int,
    "enum.StrEnum": str,
    "int": int,
    "str": str,
}
"""The bases of an Enum, and the type of its values that each decides."""
_FACTORIES: dict[str, type] = {"list": list, "dict": dict, "tuple": tuple}
_OF_DATACLASS = frozenset({"init", "repr", "eq", "order", "unsafe_hash", "frozen", "match_args", "kw_only", "slots"})


class _NotReadError(Exception):
    """This part of a class can't be determined from its syntax."""


class UnknownValue:
    """The value of an expression that only running the script can tell."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class InvalidClassError(Exception):
    """Python refuses the class itself, as it will in the job; the message is Python's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConfigClass:
    """A dataclass of a script."""

    made: type
    """A dataclass with the fields, types and defaults that the syntax decides."""
    unread: frozenset[str]
    """The fields whose type is unknown: `made` takes every value for them."""


def config_class(modules: Modules, module: PythonModule, annotation: ast.expr) -> ConfigClass | None:
    """Return the dataclass that an annotation names; None if it is no dataclass, or its syntax does not decide it.

    Raise InvalidClassError if Python would refuse the class.
    """
    reader = _Reader(modules)
    try:
        made = reader.type_of(module, annotation)
    except (_NotReadError, RecursionError):  # names that stand for each other, for instance
        return None
    if not (isinstance(made, type) and dataclasses.is_dataclass(made)):
        return None
    return ConfigClass(made=made, unread=frozenset(reader.unread.get(made, ())))


class _Reader:
    """Makes types from syntax; each class once."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._made: dict[ast.ClassDef, type | None] = {}
        self.unread: dict[type, set[str]] = {}

    def type_of(self, module: PythonModule, node: ast.expr) -> Any:
        """Return the type that an annotation names; raise _NotReadError for any other."""
        match node:
            case ast.Constant(value=None):
                return None
            case ast.Constant(value=str(text)):
                return self.type_of(module, _parsed(text))
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return typing.Union[self.type_of(module, left), self.type_of(module, right)]  # noqa: UP007 - at runtime
            case ast.Subscript(value=container, slice=inner):
                return self._subscript(module, self.type_of(module, container), inner)
            case ast.Name() | ast.Attribute():
                return self._named(module, node)
        raise _NotReadError

    def _subscript(self, module: PythonModule, container: Any, inner: ast.expr) -> Any:
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if container is typing.Literal:
            return container[tuple(self._decided(module, part) for part in parts)]
        if container not in (list, tuple, dict, typing.Optional, typing.Union):
            raise _NotReadError
        types = tuple(
            ... if isinstance(part, ast.Constant) and part.value is ... else self.type_of(module, part)
            for part in parts
        )
        try:
            return container[types[0] if container is typing.Optional else types]
        except (TypeError, IndexError) as fault:
            raise _NotReadError from fault

    def _named(self, module: PythonModule, node: ast.expr) -> Any:
        found = self._modules.definition(module, node)
        if found is None:
            name = module.full_name(node)
            if name not in _PLAIN:
                raise _NotReadError
            return _PLAIN[name]
        home, statement = found
        match statement:
            case ast.ClassDef():
                return self._class(home, statement)
            case ast.Assign(targets=[ast.Name()], value=alias):
                return self.type_of(home, alias)
        raise _NotReadError

    def _class(self, module: PythonModule, node: ast.ClassDef) -> type:
        if node not in self._made:
            self._made[node] = None  # a class whose field has the class's own type is not read
            self._made[node] = self._enum(module, node) or self._dataclass(module, node)
        made = self._made[node]
        if made is None:
            raise _NotReadError
        return made

    def _enum(self, module: PythonModule, node: ast.ClassDef) -> type | None:
        bases = [module.full_name(base) for base in node.bases]
        if not bases or not bases[-1].startswith("enum.") or not set(bases) <= _ENUMS.keys():
            return None
        if node.keywords or node.decorator_list:
            raise _NotReadError
        values = next((kind for base in bases if (kind := _ENUMS[base]) is not None), None)
        members: list[tuple[str, Any]] = []
        for statement in node.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function, args=[], keywords=[])):
                    if module.full_name(function) != "enum.auto":
                        raise _NotReadError
                    members.append((name, name.lower() if values is str else len(members) + 1))
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    members.append((name, _literal(value)))
                case ast.FunctionDef() | ast.Expr(value=ast.Constant()) | ast.Pass():
                    pass
                case _:
                    raise _NotReadError
        try:
            make: Any = enum.Enum  # mypy takes only the names of a class that is written out
            made: type = make(node.name, members, type=values)
        except (TypeError, ValueError) as fault:
            raise _NotReadError from fault
        return made

    def _dataclass(self, module: PythonModule, node: ast.ClassDef) -> type:
        options = _dataclass_options(module, node)
        bases = tuple(self.type_of(module, base) for base in node.bases)
        if node.keywords or not all(map(dataclasses.is_dataclass, bases)):
            raise _NotReadError
        unread = {name for base in bases for name in self.unread.get(base, ())}
        fields: list[tuple[str, Any, Any]] = []
        for statement in node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                    if _is_class_variable(module, annotation):
                        continue
                    entry = dataclasses.field() if value is None else self._default(module, value)
                    try:
                        kind = self.type_of(module, annotation)
                    except _NotReadError:
                        kind = Any
                    if kind is Any or _is_opaque(kind, entry):
                        kind = Any
                        unread.add(name)
                    else:
                        unread.discard(name)
                    fields.append((name, kind, entry))
                case ast.FunctionDef(name="__init__" | "__new__"):
                    raise _NotReadError
        try:
            made = dataclasses.make_dataclass(node.name, fields, bases=bases, **options)
        except (TypeError, ValueError) as fault:
            raise InvalidClassError(f"{node.name}: {fault}") from fault
        self.unread[made] = unread
        return made

    def _default(self, module: PythonModule, node: ast.expr) -> Any:
        """Return a field with its default."""
        if not (isinstance(node, ast.Call) and module.full_name(node.func) == "dataclasses.field"):
            return dataclasses.field(default=self._value(module, node))
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if None in given:
            raise _NotReadError
        options: dict[str, Any] = {name: _literal(given[name]) for name in ("init", "kw_only") if name in given}
        if "default" in given:
            options["default"] = self._value(module, given["default"])
        if (factory := given.get("default_factory")) is not None:
            options["default_factory"] = self._factory(module, factory)
        return dataclasses.field(**options)

    def _factory(self, module: PythonModule, node: ast.expr) -> Any:
        if isinstance(node, ast.Lambda):
            value = self._value(module, node.body)
        elif (name := module.full_name(node)) in _FACTORIES:
            return _FACTORIES[name]
        else:
            value = self._value(module, ast.Call(func=node, args=[], keywords=[]))
        return lambda: value

    def _value(self, module: PythonModule, node: ast.expr) -> Any:
        """Return the value of an expression, or an `UnknownValue`."""
        try:
            return self._decided(module, node)
        except _NotReadError:
            return UnknownValue(ast.unparse(node))

    def _decided(self, module: PythonModule, node: ast.expr) -> Any:
        """Return the value of a literal, a constant, a member of an Enum, or a call with such arguments."""
        match node:
            case ast.Name() if (found := self._modules.definition(module, node)) is not None:
                match found[1]:
                    case ast.Assign(targets=[ast.Name()], value=value):
                        return self._decided(found[0], value)
            case ast.Attribute(value=ast.Name() as owner, attr=name):
                owned = self.type_of(module, owner)
                if isinstance(owned, enum.EnumMeta) and name in owned.__members__:
                    return owned[name]
            case ast.Call(func=function, args=arguments, keywords=keywords):
                kind: Any = self.type_of(module, function)
                if dataclasses.is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, pathlib.PurePath)):
                    values = [self._decided(module, argument) for argument in arguments]
                    named = {str(keyword.arg): self._decided(module, keyword.value) for keyword in keywords}
                    try:
                        made: Any = kind
                        return made(*values, **named)
                    except (TypeError, ValueError) as fault:
                        raise _NotReadError from fault
            case _:
                return _literal(node)
        raise _NotReadError


def _dataclass_options(module: PythonModule, node: ast.ClassDef) -> dict[str, Any]:
    """Return the arguments of a class's ``@dataclass``; raise _NotReadError for any other decorator, or none."""
    match node.decorator_list:
        case [ast.Call(func=decorator, args=[], keywords=keywords)]:
            pass
        case [decorator]:
            keywords = []
        case _:
            raise _NotReadError
    options = {str(keyword.arg): _literal(keyword.value) for keyword in keywords}
    if module.full_name(decorator) != "dataclasses.dataclass" or not options.keys() <= _OF_DATACLASS:
        raise _NotReadError
    return options


def _is_class_variable(module: PythonModule, annotation: ast.expr) -> bool:
    """Return whether an annotation makes no field; raise _NotReadError for a variable that only ``__init__`` takes."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = _parsed(annotation.value)
    name = module.full_name(annotation.value if isinstance(annotation, ast.Subscript) else annotation)
    if name == "dataclasses.InitVar":
        raise _NotReadError
    return name == "typing.ClassVar"


def _is_opaque(kind: Any, entry: Any) -> bool:
    """Return whether a nested dataclass has a default that is unknown, and with it the defaults of its fields."""
    if not dataclasses.is_dataclass(kind):
        return False
    default = entry.default if entry.default_factory is dataclasses.MISSING else entry.default_factory()
    return isinstance(default, UnknownValue)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as fault:
        raise _NotReadError from fault


def _parsed(text: str) -> ast.expr:
    try:
        return call_parser(ast.parse, text, mode="eval").body
    except (SyntaxError, ValueError) as fault:
        raise _NotReadError from fault
