"""The pages of the reference that are made of the code when the site is built: commands, keys, settings, Python, metrics."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

import click
from site_proofs import proofs

MADE = "Made from the code when this site is built."


def commands() -> str:
    """Return the page of all commands: of each its text, its usage, its options and its examples, as `--help` prints them."""
    from rivertwice.cli.main import cli

    intro = "# Commands\n\n[The command line](../cli.md) says what they are for.\n"
    return "\n".join([intro, *_commands(cli, click.Context(cli, info_name="rivertwice"))])


def _commands(command: click.Command, context: click.Context) -> Iterator[str]:
    if command.hidden:
        return
    depth = len(context.command_path.split()) + 1
    printed = context.make_formatter()
    printed.width = 96
    command.format_usage(context, printed)
    command.format_options(context, printed)
    command.format_epilog(context, printed)
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    yield f"{'#' * min(depth, 4)} {context.command_path}\n\n{text}\n\n```text\n{printed.getvalue().strip()}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from _commands(below, click.Context(below, info_name=name, parent=context))


def python_api() -> str:
    """Return the page of the Python API: mkdocstrings writes signatures and docstrings."""
    objects = "\n\n".join(
        f"::: {name}"
        for name in (
            "rivertwice.open",
            "rivertwice.read.project.Project",
            "rivertwice.timeline.result_rows.Rows",
            "rivertwice.timeline.result_rows.ResultTable",
            "rivertwice.timeline.result_status.Status",
            "rivertwice.core.errors",
        )
    )
    return f"# Python API\n\n[Read results](../howto-results.md) shows it at work.\n\n{objects}\n"


def settings() -> str:
    """Return the page of all settings."""
    from rivertwice.core.settings import VARIABLES

    rows = [
        f"| `{each.name}` | {f'`{each.key}`' if each.key else ''} | {each.meaning} | {each.default} |" for each in VARIABLES
    ]  # fmt: skip
    return (
        "# Settings\n\n"
        "A setting is an environment variable, or a key of `rivertwice.yaml` beside `pipelines/`. A variable wins.\n"
        "Keys with a dot are nested: `kafka.protocol` is `kafka: {protocol: ...}`. Relative paths in the file\n"
        "begin at its folder. The options `--project` and `--home` of a command win over both.\n\n"
        "| variable | key | what it sets | without it |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def metrics() -> str:
    """Return the page of all metrics."""
    from rivertwice.agent.prometheus import described

    rows = [f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.text} |" for each in described()]
    return (
        "# Metrics\n\n[Watch streams](../howto-watch.md) says how to collect them.\n\n"
        "| metric | kind | labels | what it is |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def pipeline_yaml() -> str:
    """Return the page of all keys of `pipeline.yaml`, from the schema that editors use."""
    from rivertwice.definition.json_schema_file import schema_of_definitions

    schema = json.loads(schema_of_definitions())
    parts = [
        "# Keys of pipeline.yaml\n\n[Definitions](../definitions.md) explains them with examples;\n"
        "[pipeline.schema.json](../pipeline.schema.json) is the schema for editors.\n",
        _section("pipeline.yaml", schema),
    ]
    parts += [_section(name, each) for name, each in schema["$defs"].items()]
    return "\n".join(parts)


def _section(name: str, schema: Mapping[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        f"| `{key}` | {_kind(value)} | {_default(value, key in required)} | {_cell(value.get('description', ''))} |"
        for key, value in sorted(schema.get("properties", {}).items(), key=lambda pair: (pair[0] not in required, pair[0]))
    ]  # fmt: skip
    text = schema.get("description", "").strip()
    heading = f"## {_heading(name)}\n\n" + (f"{text}\n\n" if text else "")
    return f"{heading}| key | value | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _heading(name: str) -> str:
    return name if name == "pipeline.yaml" else "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip().capitalize()  # fmt: skip


def _kind(value: Mapping[str, Any]) -> str:
    return _cell(" or ".join(dict.fromkeys(_kinds(value))))


def _kinds(value: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in value:
        name = _heading(value["$ref"].rsplit("/", 1)[1])
        yield f"[{name.lower()}](#{name.lower().replace(' ', '-')})"
    elif "const" in value:
        yield f"`{value['const']}`"
    elif "enum" in value:
        yield ", ".join(f"`{each}`" for each in value["enum"])
    elif "anyOf" in value or "oneOf" in value:
        for each in value.get("anyOf", value.get("oneOf", ())):
            if each.get("type") != "null":
                yield from _kinds(each)
    elif value.get("type") == "array":
        yield f"list of {' or '.join(_kinds(value.get('items', {}))) or 'values'}"
    elif value.get("type") == "object":
        more = value.get("additionalProperties")
        yield f"name to {' or '.join(_kinds(more))}" if isinstance(more, dict) else "keys"
    elif "examples" in value and "hour" in str(value["examples"]):
        yield "duration"
    else:
        yield _bounded(value)


def _bounded(value: Mapping[str, Any]) -> str:
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    kind = words.get(value.get("type", ""), "any value")
    bounds = [
        f"{word} {value[name]:g}"
        for name, word in (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"), ("exclusiveMaximum", "below"))
        if name in value
    ]  # fmt: skip
    return " ".join([kind, *bounds])


def _default(value: Mapping[str, Any], is_required: bool) -> str:
    if is_required:
        return "**required**"
    default = value.get("default")
    if default is None or isinstance(default, dict):
        return ""
    if isinstance(default, str) and default.startswith(("PT", "P1D", "P7D")):
        from datetime import timedelta

        from pydantic import TypeAdapter

        from rivertwice.definition.parts import format_duration

        default = format_duration(TypeAdapter(timedelta).validate_python(default))
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def from_code() -> str:
    """Return the page of all that is made from the code: a part for commands, keys, settings, metrics and Python."""
    parts = (commands(), pipeline_yaml(), settings(), metrics(), python_api())
    return f"# Commands, keys, settings, metrics, Python\n\n{MADE}\n\n" + "\n".join(_demoted(part) for part in parts)


def _demoted(page: str) -> str:
    """Return a page one level of headings deeper; blocks of code keep their lines."""
    lines, is_code = [], False
    for line in page.splitlines():
        is_code ^= line.startswith("```")
        lines.append(f"#{line}" if line.startswith("#") and not is_code else line)
    return "\n".join(lines) + "\n"


PAGES = {
    "reference/code.md": from_code,
    "reference/proofs.md": proofs,
}
