"""admin schema: the registry's subjects and versions, and what a pipeline has pinned of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import DEFECT, Frame, FriendlyGroup, as_table, example, pass_frame
from rivertwice.cli.options import name_argument
from rivertwice.core import RequestError, to_plain

if TYPE_CHECKING:
    from rivertwice.definition import DefinitionFile, RefreshPlan, SchemaFormat, SchemaVersion, Source

RULE = click.Choice(["none", "backward", "forward", "full"])
_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.group(
    cls=FriendlyGroup,
    invoke_without_command=True,
    epilog=example(
        "rivertwice admin schema > docs/pipeline.schema.json", "rivertwice admin schema refresh order_totals --dry-run"
    ),
)
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), help="Without a verb: write it to this file.")
@changes_unasked("with --file that file", because="it is named for that")
@click.pass_context
def schema(ctx: click.Context, file: Path | None) -> None:
    """Print pipeline.yaml's schema; keep the schemas of records.

    Without a verb the JSON Schema of pipeline.yaml is printed, so that editors check it. The registry is the project's folder schemas/, or a Confluent registry at
    $RIVERTWICE_SCHEMA_REGISTRY (logins: `rivertwice docs howto-schemas`). A running pipeline never asks it: it decodes by what `refresh`
    pinned beside its definition.
    """
    if ctx.invoked_subcommand is not None:
        return
    from rivertwice.definition import schema_of_definitions

    text = schema_of_definitions()
    if file is None:
        click.echo(text, nl=False)
    else:
        file.write_text(text)
        ctx.obj.emit({"file": str(file)}, f"wrote {file}")


@schema.command("list", epilog=example("rivertwice admin schema list", "rivertwice admin schema list orders-value"))
@click.argument("subject", required=False)
@pass_frame
def list_versions(frame: Frame, subject: str | None) -> None:
    """List the versions of SUBJECT, or of all subjects.

    Each is shown with the id that records carry.
    """
    from rivertwice.definition import open_registry

    registry = open_registry(frame.settings.project)
    versions = {name: registry.versions(name) for name in ([subject] if subject else registry.subjects())}
    rules = {name: registry.rule(name) for name in versions}
    rows = [
        (each.subject, each.version, each.id, each.kind, rules[name]) for name in versions for each in versions[name]
    ]
    value = [{**_plain(each), "rule": rules[name]} for name in versions for each in versions[name]]
    text = as_table(("subject", "version", "id", "kind", "rule"), rows) if rows else f"no versions in {registry.place}"
    frame.emit(value, text)


@schema.command(
    "show", epilog=example("rivertwice admin schema show orders-value", "rivertwice admin schema show --id 3")
)
@click.argument("subject", required=False)
@click.option("--version", "number", type=click.IntRange(1), help="Which version; default: the newest.")
@click.option("--id", "schema_id", type=click.IntRange(1), help="By the id that records carry, instead of SUBJECT.")
@pass_frame
def show(frame: Frame, subject: str | None, number: int | None, schema_id: int | None) -> None:
    """Print one schema, the newest of SUBJECT by default.

    --version prints an older one, --id the one that has an id.
    """
    from rivertwice.definition import open_registry

    registry = open_registry(frame.settings.project)
    if (subject is None) == (schema_id is None):
        message = "say which schema: SUBJECT (perhaps with --version), or --id; exactly one of the two"
        raise RequestError(message)
    if schema_id is not None:
        versions = [registry.by_id(schema_id)]
    else:
        versions = [each for each in registry.versions(subject or "") if number is None or each.version == number]
    if not versions:
        message = (
            f"{registry.place} has no such version of {subject}; `rivertwice admin schema list` shows what is there"
        )
        raise RequestError(message)
    shown = json.loads(versions[-1].text)
    frame.emit({**_plain(versions[-1]), "schema": shown}, json.dumps(shown, indent=2, ensure_ascii=False))


@schema.command("check", epilog=example("rivertwice admin schema check orders-value order-v4.avsc"))
@click.argument("subject")
@click.argument("file", type=_FILE)
@click.option("--rule", type=RULE, help="Judge by this rule instead of the subject's own.")
@pass_frame
def check(frame: Frame, subject: str, file: Path, rule: Any) -> None:
    """Say whether FILE could be the next version of SUBJECT.

    It registers nothing; exit 3 if FILE could not. Every earlier version is asked, because the log holds records of all of them. `backward`: it can read their records;
    `forward`: they can read its records; `full`: both. A changed meaning (milliseconds for microseconds, another scale)
    is a break too, though Avro alone would accept it.
    """
    from rivertwice.definition import check_new, open_registry

    kind, text = _read(file)
    registry = open_registry(frame.settings.project)
    findings = check_new(registry, subject, kind, text, rule)
    wanted = rule or registry.rule(subject)
    outcome = (
        "\n".join(f"{subject}: {finding}" for finding in findings) or f"{file} may follow: {subject} stays {wanted}"
    )
    frame.emit({"subject": subject, "rule": wanted, "findings": findings}, outcome)
    if findings:
        raise SystemExit(DEFECT)


@schema.command("register", epilog=example("rivertwice admin schema register orders-value order-v2.avsc --rule full"))
@click.argument("subject")
@click.argument("file", type=_FILE)
@click.option("--rule", type=RULE, help="Set the subject's rule; at first backward for Avro, none for JSON Schema.")
@changes_unasked("a version in the registry", because="its rule judges it, and no pipeline changes by it")
@pass_frame
def register(frame: Frame, subject: str, file: Path, rule: Any) -> None:
    """Make FILE the next version of SUBJECT.

    A file .avsc is Avro, .json is JSON Schema. The subject's rule can refuse it. The very same schema again changes nothing and prints its version. No pipeline changes by it: `refresh` does that.
    """
    from rivertwice.definition import open_registry

    kind, text = _read(file)
    made = open_registry(frame.settings.project).register(subject, kind, text, rule)
    frame.emit(_plain(made), f"{made.subject} version {made.version} has id {made.id}")


@schema.command(
    "refresh",
    epilog=example(
        "rivertwice admin schema refresh order_totals --dry-run", "rivertwice admin schema refresh order_totals"
    ),
)
@name_argument()
@click.option("--source", "chosen", metavar="VIEW", help="Which source's schemas, if there are several.")
@click.option("--dry-run", is_flag=True, help="Only say what would be pinned.")
@click.option(
    "--reader", type=click.IntRange(1), metavar="VERSION", help="Read by this version of the subject from now on."
)
@click.option(
    "--change-decode", is_flag=True, help="Write although a stream has begun, which then needs `rivertwice upgrade`."
)
@changes_unasked("schemas beside the definition", because="git shows it, and --dry-run")
@pass_frame
def refresh(
    frame: Frame, name: str, chosen: str | None, dry_run: bool, reader: int | None, change_decode: bool
) -> None:
    """Pin the registry's schemas beside the definition of NAME.

    What the registry has under the pipeline's `subject` becomes schemas/VIEW-ID.avsc beside pipeline.yaml. Records of an id that is not pinned are dead letters (schema_id), by address; nothing is dropped. Versions whose
    records could not be decoded are named and not pinned: exit 3. A stream that has begun decodes by the schemas it
    began with; it continues, but is not started again with changed ones, so they are not written without --change-decode.
    """
    from rivertwice.definition import load_draft, open_registry, plan_refresh, read_pinned, split_name
    from rivertwice.storage import replace_bytes

    folder = frame.settings.definitions / frame.known_pipeline(name)
    draft = load_draft(folder)
    view, source = _source_of(draft, chosen)
    if source.format != "avro" or source.subject is None:
        message = (
            f"{name} has format {source.format} and subject {source.subject}, so there is nothing to pin; give it format: avro "
            "and a subject (for framed JSON, schema_ids in pipeline.yaml is the list of known ids)"
        )
        raise RequestError(message)
    versions = open_registry(frame.settings.project).versions(source.subject)
    framed = source.framing == "confluent"
    others = draft.sources.keys() - {view}
    own_files = {path: data for path, data in read_pinned(folder).items() if split_name(path)[0] not in others}
    plan = plan_refresh(source.subject, view, source.schema_, own_files, versions, framed=framed, reader_version=reader)
    began = _begun_otherwise(frame, name, plan.write)
    if plan.write and not dry_run:
        if began and not change_decode:
            message = (
                f"timeline {began} of {name} decodes by the schemas it began with; with {', '.join(sorted(plan.write))} its "
                "driver would not start again. Until then records of other ids stay dead letters with their address. Write "
                "them with --change-decode and continue with `rivertwice upgrade`, or pin them in a copy of the pipeline under "
                "another name, which reads the log from its start"
            )
            raise RequestError(message)
        for path, text in sorted(plan.write.items()):
            replace_bytes(folder / path, text.encode())
    frame.emit(
        {**to_plain(plan), "written": bool(plan.write) and not dry_run, "began": began},
        lambda: _plan_text(plan, dry_run),
    )
    if plan.refused:
        raise SystemExit(DEFECT)


@schema.command(
    "pin",
    epilog=example(
        "protoc --include_imports --descriptor_set_out=order.protoset order.proto",
        "rivertwice admin schema pin order_states order.protoset --message shop.Order",
        "rivertwice admin schema pin order_states --subject orders-value --message shop.Order",
    ),
)
@name_argument()
@click.argument("file", type=_FILE, required=False)
@click.option(
    "--subject", help="Take the message from this subject of the registry, with all that it imports, not from a file."
)
@click.option("--version", type=click.IntRange(1), help="Which version of the subject; default: the newest.")
@click.option("--message", "wanted", metavar="NAME", help="Full name of the message; default: the file's only one.")
@click.option("--source", "chosen", metavar="VIEW", help="Which source's message it is, if there are several.")
@click.option("--dry-run", is_flag=True, help="Only say what would be pinned.")
@click.option(
    "--change-decode", is_flag=True, help="Write although a stream has begun, which then needs `rivertwice upgrade`."
)
@changes_unasked("a schema beside the definition", because="git shows it, and --dry-run")
@pass_frame
def pin(
    frame: Frame,
    name: str,
    file: Path | None,
    subject: str | None,
    version: int | None,
    wanted: str | None,
    chosen: str | None,
    dry_run: bool,
    change_decode: bool,
) -> None:
    """Pin a Protobuf message beside the definition of NAME.

    FILE is what protoc compiled, or --subject names one of the registry; the message becomes schemas/VIEW.protobuf.json beside pipeline.yaml. A message that could not read the records of the one pinned before is refused: exit 3. Its text is JSON, for reviews.
    """
    from rivertwice.definition import load_draft, plan_pin, proto_file_name
    from rivertwice.storage import replace_bytes

    folder = frame.settings.definitions / frame.known_pipeline(name)
    view, source = _source_of(load_draft(folder), chosen)
    if source.format != "protobuf":
        message = f"the source {view} of {name} has format {source.format}; a compiled message is pinned only for format: protobuf"
        raise RequestError(message)
    path = proto_file_name(view)
    before = (folder / path).read_bytes() if (folder / path).is_file() else None
    data, origin = _compiled(frame, file, subject, version)
    planned = plan_pin(data, wanted, source.schema_, before, origin)
    write = {} if planned.findings or not planned.changed else {path: planned.text}
    began = _begun_otherwise(frame, name, write) if write else None
    if write and not dry_run:
        if began and not change_decode:
            message = (
                f"timeline {began} of {name} decodes by the message it began with; with another its driver would not start "
                "again. Write it with --change-decode and continue with `rivertwice upgrade`"
            )
            raise RequestError(message)
        (folder / path).parent.mkdir(exist_ok=True)
        replace_bytes(folder / path, planned.text.encode())
    wrote = bool(write) and not dry_run
    lines = [f"{origin}: {finding}" for finding in planned.findings] or [
        f"{'wrote' if wrote else 'would write'} {path}: {planned.message}"
        if write
        else f"{path} has that message already"
    ]
    value = {"message": planned.message, "findings": list(planned.findings), "written": wrote, "began": began}
    frame.emit(value, "\n".join(lines))
    if planned.findings:
        raise SystemExit(DEFECT)


def _compiled(frame: Frame, file: Path | None, subject: str | None, version: int | None) -> tuple[bytes, str]:
    """Return a compiled Protobuf file, and where it is from."""
    from rivertwice.definition import open_registry

    if (file is None) == (subject is None) or (file is not None and version is not None):
        message = "say where the message is from: FILE, or --subject with or without --version; nothing was done"
        raise RequestError(message)
    if file is not None:
        return file.read_bytes(), str(file)
    return open_registry(frame.settings.project).compiled(str(subject), version), str(subject)


def _source_of(draft: DefinitionFile, chosen: str | None) -> tuple[str, Source]:
    """Return the named source, or the only one that has a subject, or the only one at all."""
    with_subject = [view for view, source in draft.sources.items() if source.subject is not None]
    views = [chosen] if chosen is not None else with_subject if len(with_subject) == 1 else list(draft.sources)
    if len(views) > 1 or views[0] not in draft.sources:
        message = (
            f"{draft.name} has the sources {list(draft.sources)}; say which one with --source VIEW; nothing was done"
        )
        raise RequestError(message)
    return views[0], draft.sources[views[0]]


def _begun_otherwise(frame: Frame, name: str, write: Mapping[str, str]) -> str | None:
    """Return the head timeline if it decodes in another way than the definition will."""
    from rivertwice.definition import fingerprint_of, parse_files, read_files
    from rivertwice.timeline import Timeline, head

    home = frame.settings.pipeline(name)
    began = head(home)
    if began is None:
        return None
    folder = frame.settings.definitions / name
    files = {**read_files(folder), **{path: text.encode() for path, text in write.items()}}
    after = fingerprint_of(parse_files(files, str(folder))).decode
    return began if Timeline.load(home, began).fingerprint["decode"] != after else None


def _plan_text(plan: RefreshPlan, dry_run: bool) -> str:
    lines = [f"{plan.subject}: {len(plan.known)} ids pinned, {len(plan.new)} new"]
    lines += [f"{'would write' if dry_run else 'wrote'} {path}" for path in sorted(plan.write)]
    lines += [
        f"version {each.version} (id {each.id}) is not pinned, its records are dead letters (schema_id): {each.because}"
        for each in plan.refused
    ]
    lines += [
        f"id {each} is pinned but not in the registry; it stays, the log may hold its records" for each in plan.gone
    ]
    return "\n".join(lines)


def _read(file: Path) -> tuple[SchemaFormat, str]:
    from rivertwice.definition import MAX_BYTES

    kinds: dict[str, SchemaFormat] = {".avsc": "avro", ".json": "json"}
    if file.suffix not in kinds or file.stat().st_size > MAX_BYTES:
        message = f"{file} is neither .avsc (Avro) nor .json (JSON Schema), or larger than {MAX_BYTES} bytes; rename or shorten it"
        raise RequestError(message)
    try:
        return kinds[file.suffix], file.read_text()
    except UnicodeDecodeError as error:
        message = f"{file} is not UTF-8 (byte {error.start}); save it as UTF-8"
        raise RequestError(message) from None


def _plain(version: SchemaVersion) -> dict[str, Any]:
    return {key: value for key, value in to_plain(version).items() if key != "text"}
