"""Convert the values of ModelTrainer and its ``train`` to the Estimator's, in place."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import libcst as cst

from estimators.migrate import parameter_names as names
from estimators.migrate.call_layout import Item, items, keyword, laid_out, renamed, without
from estimators.migrate.job import ScriptJob

_Convert = Callable[[cst.BaseExpression], None]


class Values:
    """Converts the values of one job, or blocks the job with the reason."""

    def __init__(self, job: ScriptJob) -> None:
        self._job = job
        self._script = job.script

    def configuration(self, name: str, value: cst.BaseExpression) -> None:
        """Turn a configuration into a ``dict(…)`` of the Estimator's parameters."""
        class_name, _ = names.CONFIGURATIONS[name]
        self._each(value, lambda bound: self._configuration(name, bound), f"{class_name}(…)")

    def distribution(self, value: cst.BaseExpression) -> None:
        """Turn ``Torchrun`` or ``MPI`` into a distribution of the Estimator."""
        self._each(value, self._distribution, "Torchrun(…) or MPI(…)")

    def tags(self, value: cst.BaseExpression) -> None:
        """Turn each ``Tag`` of a list into the API's dict."""
        self._each(value, self._tags, "a list of Tag(…)")

    def channels(self, value: cst.BaseExpression) -> None:
        """Turn a list of ``InputData`` into a dict of channels."""
        if self._script.written(value) is not None:
            self._each(value, self._channels, "a list of InputData(…)")

    def _each(self, value: cst.BaseExpression, convert: _Convert, wanted: str) -> None:
        """Convert a value, or each value that a variable is bound to."""
        if not isinstance(value, cst.Name):
            convert(value)
            return
        variable = self._script.variable(value)
        bound = variable.bindings if variable else ()
        if not bound or None in bound:
            found = f"what {value.value} holds is not to be seen"
            self._job.block(value, found, f"Write {wanted} where ModelTrainer takes it, or assign it to a variable.")
            return
        assert variable is not None
        self._job.variables.add(variable)
        for each in bound:
            assert each is not None
            if each not in self._job.replaced:
                convert(each)
                self._job.replaced.add(each)
        self._job.replaced.add(value)

    def _called(self, value: cst.BaseExpression) -> str:
        """Return the name of the SDK's class that an expression calls; "" if it calls none."""
        full = self._script.imported_name(value.func) if isinstance(value, cst.Call) else None
        return full.rpartition(".")[2] if full and full.startswith("sagemaker.") else ""

    def _configuration(self, name: str, value: cst.BaseExpression) -> None:
        class_name, members = names.CONFIGURATIONS[name]
        if self._called(value) != class_name or not isinstance(value, cst.Call):
            found = f"{name} is {self._script.text(value):.80}{self._script.star_import()}"
            self._job.block(value, found, f"Write {class_name}(…), with its members by name.")
            return
        self._job.replace(value.func)
        given = set()
        for arg in value.args:
            member = arg.keyword.value if arg.keyword else ""
            given.add(member)
            if member not in members and not self._is_default(member, arg.value):
                found = f"the Estimator has no parameter for {member or self._script.text(arg)} of {class_name}"
                self._job.block(arg, found, names.NO_PLACE.get(member, "Remove it, if the job can do without."))
        for member, why in names.REQUIRED.get(name, {}).items():
            if member not in given:
                self._job.block(value, f"{class_name} without {member}: {why}", f"Give {member}.")
        self._job.edit(value, lambda updated: self._as_dict(name, updated))

    def _is_default(self, member: str, value: cst.BaseExpression) -> bool:
        """Return whether a member can be left out: it has the Estimator's default, or `_as_dict` converts it."""
        is_variable = isinstance(value, cst.Name) and value.value != "None"
        written = ... if is_variable else self._script.written(value)
        return (
            written is None
            or (member == "requirements" and written in ("requirements.txt", "auto"))
            or (member == "compression_type" and written in ("GZIP", "NONE"))
        )

    def _as_dict(self, name: str, call: cst.Call) -> cst.Call:
        _, members = names.CONFIGURATIONS[name]
        found, closing = without(*items(call), lambda item: self._is_left_out(members, item.arg))
        kept = [replace(item, arg=_renamed_by(members, item.arg)) for item in found]
        given = {item.arg.keyword.value for item in kept if item.arg.keyword}
        missing = [
            Item(keyword(parameter, cst.parse_expression(default)))
            for parameter, default in names.DEFAULTS.get(name, {}).items()
            if parameter not in given
        ]
        return laid_out(call.with_changes(func=cst.Name("dict")), [*kept, *missing], closing)

    def _is_left_out(self, members: Mapping[str, str], arg: cst.Arg) -> bool:
        is_uncompressed = self._script.written(arg.value) == "NONE"
        return arg.keyword is not None and arg.keyword.value not in members and not is_uncompressed

    def _distribution(self, value: cst.BaseExpression) -> None:
        kind = self._called(value)
        if self._script.written(value) is None:
            return
        if kind not in ("Torchrun", "MPI") or not isinstance(value, cst.Call):
            found = f"distributed is {self._script.text(value):.80}{self._script.star_import()}"
            self._job.block(value, found, "Write Torchrun() or MPI(…): other launchers of V3 are not the Estimator's.")
            return
        self._job.replace(value.func)
        given = {arg.keyword.value: arg.value for arg in value.args if arg.keyword}
        given = {name: each for name, each in given.items() if self._script.written(each) is not None}
        for name in sorted(
            given.keys() - ({"process_count_per_node", "mpi_additional_options"} if kind == "MPI" else set())
        ):
            remedy = "Remove it: the toolkit starts one process a GPU." if name == "process_count_per_node" else ""
            self._job.block(
                value, f"the Estimator has no {name} for {kind}", remedy or names.NO_PLACE.get(name, "Remove it.")
            )
        options = self._script.written(given["mpi_additional_options"]) if "mpi_additional_options" in given else []
        if not isinstance(options, list) or any(
            not isinstance(each, str) or len(each.split()) != 1 for each in options
        ):
            remedy = "Write them out as a list of texts without spaces."
            self._job.block(value, "mpi_additional_options are not to be seen, or hold spaces", remedy)
            options = []
        if not given:
            self._job.edit(value, lambda _: cst.SimpleString('"torchrun"' if kind == "Torchrun" else '"mpi"'))
            return
        count = given.get("process_count_per_node")
        members = ['"enabled": True']
        members += [] if count is None else [f'"processes_per_host": {self._script.text(count)}']
        members += [f'"custom_mpi_options": {json.dumps(" ".join(options))}'] if options else []
        self._job.edit(value, lambda _: cst.parse_expression(f'{{"mpi": {{{", ".join(members)}}}}}'))

    def _tags(self, value: cst.BaseExpression) -> None:
        if self._script.written(value) is None:
            return
        elements = value.elements if isinstance(value, cst.List) else None
        if elements is None or any(self._called(each.value) != "Tag" for each in elements):
            found = f"tags is {self._script.text(value):.80}"
            self._job.block(value, found, "Write a list of Tag(key=…, value=…).")
            return
        for element in elements:
            call = cst.ensure_type(element.value, cst.Call)
            self._job.replace(call.func)
            if {arg.keyword.value for arg in call.args if arg.keyword} != {"key", "value"}:
                self._job.block(call, "a Tag without key and value", "Write Tag(key=…, value=…).")
            self._job.edit(call, _tag)

    def _channels(self, value: cst.BaseExpression) -> None:
        if not isinstance(value, cst.List):
            found = f"the channels are {self._script.text(value):.80}"
            self._job.block(value, found, "Write a list of InputData(…).")
            return
        for element in value.elements:
            self._each(element.value, self._channel, "InputData(…)")
        names = [name for element in value.elements if (name := self._channel_name(element.value)) is not None]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            self._job.block(value, f"{', '.join(twice)} is the name of several channels", "Give each its own.")
        self._job.edit(value, _dict_of_channels)

    def _channel_name(self, value: cst.BaseExpression) -> str | None:
        args = value.args if isinstance(value, cst.Call) else ()
        named = next((arg.value for arg in args if arg.keyword and arg.keyword.value == "channel_name"), None)
        written = self._script.written(named)
        return written if isinstance(written, str) else None

    def _channel(self, value: cst.BaseExpression) -> None:
        if self._called(value) != "InputData" or not isinstance(value, cst.Call):
            found = f"a channel is {self._script.text(value):.80}"
            self._job.block(value, found, "Write InputData(channel_name=…, data_source=…).")
            return
        self._job.replace(value.func)
        given = {arg.keyword.value: arg.value for arg in value.args if arg.keyword}
        if not {"channel_name", "data_source"} <= given.keys() <= {"channel_name", "data_source", "content_type"}:
            self._job.block(
                value, "a channel without name or source", "Write InputData(channel_name=…, data_source=…)."
            )
            return
        source = given["data_source"]
        written = self._script.written(source)
        if isinstance(written, str) and not written.startswith("s3://"):
            found = f"ModelTrainer uploads {written!r}, and the Estimator reads channels where they are"
            self._job.block(source, found, "Upload it with sagemaker_session.upload_data(), and give the URI.")
        kind = self._called(source)
        if kind in ("S3DataSource", "FileSystemDataSource"):
            self._source(cst.ensure_type(source, cst.Call), kind, given.get("content_type"))
        elif "content_type" in given:
            self._need("TrainingInput", value)
        self._job.edit(value, _channel)

    def _need(self, name: str, node: cst.CSTNode) -> None:
        """Note that the script needs a class of the SDK for its channels."""
        self._job.inputs.add(name)
        if name in self._script.names() and f"sagemaker.core.inputs.{name}" not in self._script.imported().values():
            self._job.block(node, f"the script has a {name} of its own, and needs the SDK's", "Rename its own.")

    def _source(self, call: cst.Call, kind: str, content_type: cst.BaseExpression | None) -> None:
        table = names.TRAINING_INPUT if kind == "S3DataSource" else names.FILE_SYSTEM_INPUT
        new = "TrainingInput" if kind == "S3DataSource" else "FileSystemInput"
        self._need(new, call)
        self._job.replace(call.func)
        for arg in call.args:
            if arg.keyword is None or arg.keyword.value not in table:
                found = f"{new} has no {self._script.text(arg).rstrip(', ')}"
                self._job.block(arg, found, "Remove it, if the job can do without.")

        def edit(updated: cst.Call) -> cst.Call:
            return updated.with_changes(func=cst.Name(new), args=[_renamed_by(table, arg) for arg in updated.args])

        self._job.edit(call, edit)
        if content_type is not None and kind == "FileSystemDataSource":
            self._job.block(call, "a file system with a content_type", "Give FileSystemInput its content_type.")


def _renamed_by(table: Mapping[str, str], arg: cst.Arg) -> cst.Arg:
    name = arg.keyword.value if arg.keyword else ""
    if name == "compression_type":
        return keyword("disable_output_compression", cst.Name("True"))
    return renamed(arg, table.get(name, name))


def _tag(call: cst.Call) -> cst.Dict:
    given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword}
    return cst.Dict([cst.DictElement(cst.SimpleString(f'"{name.title()}"'), given[name]) for name in ("key", "value")])


def _channel(call: cst.Call) -> cst.Dict:
    """Return a channel as a dict with one entry."""
    given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword}
    source = given["data_source"]
    if (content_type := given.get("content_type")) is not None:
        typed = keyword("content_type", content_type)
        if isinstance(source, cst.Call) and isinstance(source.func, cst.Name) and source.func.value == "TrainingInput":
            source = source.with_changes(args=[*source.args, typed])
        else:
            source = cst.Call(cst.Name("TrainingInput"), [cst.Arg(source), typed])
    return cst.Dict([cst.DictElement(given["channel_name"], source)])


def _dict_of_channels(channels: cst.List) -> cst.Dict:
    """Return a list of dicts with one entry, and of variables with such, as one dict in the list's layout."""
    elements: list[cst.BaseDictElement] = []
    for element in channels.elements:
        value = element.value
        if isinstance(value, cst.Dict):
            (channel,) = value.elements
            elements.append(channel.with_changes(comma=element.comma))
        else:
            elements.append(cst.StarredDictElement(value, comma=element.comma))
    return cst.Dict(
        elements,
        lbrace=cst.LeftCurlyBrace(whitespace_after=channels.lbracket.whitespace_after),
        rbrace=cst.RightCurlyBrace(whitespace_before=channels.rbracket.whitespace_before),
    )
