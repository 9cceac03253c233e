"""The inputs of its job that a script reads, by its syntax: options by argparse, and channels by name."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from smddp.job.channels import VARIABLE_PREFIX
from smddp.job.near_names import near_name
from smddp.python_syntax import full_name
from smddp.script_syntax.executed import Executed
from smddp.script_syntax.modules import PythonModule

_PARSER = "argparse.ArgumentParser"
_PARSER_SHOWN = frozenset({"description", "prog", "epilog", "formatter_class", "usage"})
"""Arguments of a parser that do not change what it accepts."""
_OPTION_SHOWN = frozenset({"help", "metavar", "default"})
"""Arguments of an option that do not change what it accepts."""
_TYPES: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "pathlib.Path": Path}
_FALSE = frozenset({"false", "no", "off", "none", "0"})
"""Texts that mean False, and that ``bool`` reads as True, as it does every text but an empty one."""
_ACTIONS = frozenset({"store", "store_true", "store_false", "store_const", "append", "count", "extend"})
_OTHER_USES = frozenset({"error", "exit", "format_help", "print_help", "print_usage", "set_defaults"})
"""Methods of a parser that do not change the options that it accepts."""


class _NotReadError(Exception):
    """The syntax does not decide the parser."""


class _RefusedError(Exception):
    """argparse refuses a command line; the message is its own."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _RefusedError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionParser:
    """The options that a script reads by argparse, made again from its syntax: argparse then judges a command line.

    The parser is made only if its syntax decides it: one ``ArgumentParser``, whose options every run of the script
    adds, and which parses this process's own command line. An option's `type` that is unknown takes every text.
    """

    parser: argparse.ArgumentParser
    names: tuple[str, ...]
    """The options, with their dashes."""
    takes_unknown: bool
    """Whether the script takes options that it does not know."""
    drops_unknown: bool
    """Whether it also ignores them: it does nothing with the rest of ``parse_known_args``."""

    @classmethod
    def of(cls, nodes: Sequence[Executed]) -> OptionParser | None:
        """Return the parser that the executed nodes of a script make; None if their syntax does not decide it."""
        try:
            return _read(nodes)
        except _NotReadError:
            return None

    def faults(self, arguments: Sequence[str]) -> Iterator[str]:
        """Yield why the script would refuse a command line."""
        try:
            _, unknown = self.parser.parse_known_args(list(arguments))
        except _RefusedError as fault:
            yield str(fault)
            return
        if unknown and not self.takes_unknown:
            told = self._flags(arguments, unknown) or self._nearest(unknown)
            yield f"unrecognized arguments: {' '.join(unknown)}{told}"

    def ignored(self, arguments: Sequence[str]) -> str:
        """Return the words of a command line that argparse takes and the script ignores; empty if there are none."""
        if not self.drops_unknown:
            return ""
        try:
            _, unknown = self.parser.parse_known_args(list(arguments))
        except _RefusedError:
            return ""
        return f"{' '.join(unknown)}{self._nearest(unknown)}" if unknown else ""

    def read_as_true(self, arguments: Sequence[str]) -> Iterator[str]:
        """Yield each option with a value such as False that its ``type=bool`` reads as True."""
        names = {name for action in self.parser._actions if action.type is bool for name in action.option_strings}  # noqa: SLF001
        for option, value in pairwise(arguments):
            if option in names and value.lower() in _FALSE:
                yield f"{option} {value}"

    def _flags(self, arguments: Sequence[str], unknown: Sequence[str]) -> str:
        """Return which flags are followed by an unknown value, such as the True in ``--amp True``."""
        flags = {name for action in self.parser._actions if action.nargs == 0 for name in action.option_strings}  # noqa: SLF001
        followed = [flag for flag, value in pairwise(arguments) if flag in flags and value in unknown]
        is_flag = "is a flag, which takes" if len(followed) == 1 else "are flags, which take"
        return f" ({', '.join(followed)} {is_flag} no value)" if followed else ""

    def _nearest(self, unknown: Sequence[str]) -> str:
        near = next((name for option in unknown if (name := near_name(option, self.names))), None)
        return f" (did you mean {near!r}?)" if near else ""


def _read(nodes: Sequence[Executed]) -> OptionParser:
    made = [(module, node) for module, node in nodes if _makes_parser(module, node)]
    if len(made) != 1 or sum(_makes_parser(made[0][0], node) for node in made[0][0].nodes) != 1:
        raise _NotReadError
    module, statement = made[0]
    assert isinstance(statement, ast.Assign)
    assert isinstance(statement.value, ast.Call)
    assert isinstance(statement.targets[0], ast.Name)
    name = statement.targets[0].id
    calls = _calls_of(module, name, nodes)
    parses = [call for call in calls if _method(call) in ("parse_args", "parse_known_args")]
    if len(parses) != 1 or not _is_of_command_line(module, parses[0]):
        raise _NotReadError
    parser = _Parser(**_parser_options(statement.value), add_help=False)
    options = [call for call in calls if _method(call) == "add_argument"]
    if not options:
        raise _NotReadError
    added = [_add(parser, module, call) for call in options]
    return OptionParser(
        parser=parser,
        names=tuple(name for option in added for name in option.option_strings),
        takes_unknown=_method(parses[0]) == "parse_known_args",
        drops_unknown=_method(parses[0]) == "parse_known_args" and _drops_rest(module, parses[0]),
    )


def _drops_rest(module: PythonModule, call: ast.Call) -> bool:
    """Return whether nothing reads the second result of a call, as in ``call()[0]`` and ``args, _ = call()``."""
    for node in module.nodes:
        match node:
            case ast.Subscript(value=value, slice=ast.Constant(value=0)) if value is call:
                return True
            case ast.Assign(targets=[ast.Tuple(elts=[_, ast.Name(id=rest)])], value=value) if value is call:
                read = (each for each in module.nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))
                return all(each.id != rest for each in read)
    return False


def _makes_parser(module: PythonModule, node: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name()], value=ast.Call(func=function)):
            return module.full_name(function) == _PARSER
    return False


def _calls_of(module: PythonModule, name: str, nodes: Sequence[Executed]) -> list[ast.Call]:
    """Return the calls of a parser's methods; raise _NotReadError if it is used otherwise, or not in every run."""
    executed = {id(node) for _, node in nodes}
    own = [call for call in module.calls if full_name(call.func, {}) == f"{name}.{_method(call)}"]
    uses = sum(isinstance(node, ast.Name) and node.id == name for node in module.nodes)
    known = {"add_argument", "parse_args", "parse_known_args"}
    deciding = [call for call in own if _method(call) in known]
    others = [call for call in own if _method(call) not in known | _OTHER_USES]
    if uses != len(own) + 1 or others or not all(id(call) in executed for call in deciding):
        raise _NotReadError
    return deciding


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_of_command_line(module: PythonModule, call: ast.Call) -> bool:
    match [*call.args, *(keyword.value for keyword in call.keywords)]:
        case [] | [ast.Constant(value=None)]:
            return True
        case [ast.Subscript(value=words, slice=ast.Slice(lower=ast.Constant(value=1), upper=None, step=None))]:
            return module.full_name(words) == "sys.argv"
    return False


def _parser_options(call: ast.Call) -> dict[str, Any]:
    options = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg not in _PARSER_SHOWN}
    if not options.keys() <= {"allow_abbrev", "add_help"} or len(call.args) > 1:
        raise _NotReadError
    return {"allow_abbrev": "allow_abbrev" not in options or _literal(options["allow_abbrev"])}


def _add(parser: argparse.ArgumentParser, module: PythonModule, call: ast.Call) -> argparse.Action:
    options: dict[str, Any] = {}
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg not in _OPTION_SHOWN}
    for name, node in given.items():
        if name == "type":
            options["type"] = _TYPES.get(module.full_name(node), str)
        elif name == "action":
            options["action"] = _action(module, node)
        elif name == "const":
            options["const"] = None
        elif name in ("choices", "required", "nargs", "dest"):
            options[name] = _literal(node)
        else:
            raise _NotReadError
    if "type" in given and module.full_name(given["type"]) not in _TYPES:
        options.pop("choices", None)
    try:
        return parser.add_argument(*map(_literal, call.args), **options)
    except (TypeError, ValueError, argparse.ArgumentError) as fault:
        raise _NotReadError from fault


def _action(module: PythonModule, node: ast.expr) -> Any:
    if module.full_name(node) == "argparse.BooleanOptionalAction":
        return argparse.BooleanOptionalAction
    action = _literal(node)
    if action not in _ACTIONS:
        raise _NotReadError
    return action


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as fault:
        raise _NotReadError from fault


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelRead:
    """A place where a script reads a channel."""

    name: str
    is_variable: bool
    """Whether the script reads the variable SM_CHANNEL_*, not the job."""


def channel_read(module: PythonModule, node: ast.AST) -> ChannelRead | None:
    """Return the channel of ``job.channels["training"]``, ``job.inputs[…]`` or ``os.environ["SM_CHANNEL_TRAINING"]``.

    Return None for any other node.
    """
    match node:
        case ast.Subscript(value=owner, slice=ast.Constant(value=str(name)), ctx=ast.Load()):
            text = module.full_name(owner)
            if text in ("job.channels", "job.inputs"):
                return ChannelRead(name=name, is_variable=False)
            if text == "os.environ" and name.startswith(VARIABLE_PREFIX):
                return ChannelRead(name=name.removeprefix(VARIABLE_PREFIX).lower(), is_variable=True)
    return None
