"""Whatever text or bytes come in: an id stays an id, a path stays below its root, a bad file is a named error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homes.project import REPOSITORY
from rivertwice.backfill.store import backfill_folder
from rivertwice.core.errors import ConfigError, DefinitionError, RequestError, RivertwiceError
from rivertwice.core.homes import parse_place, require_name, require_topic
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import parse_files
from rivertwice.savepoint.manifest import Manifest, require_savepoint_id
from rivertwice.storage.blobs import require_key
from rivertwice.storage.leases import decode_held
from rivertwice.storage.local import LocalStore
from rivertwice.stream.checkpoint import parse_offsets

NASTY = st.sampled_from(
    ["..", "../..", "/etc/passwd", "a/../b", "%2e%2e", "a\x00b", "file:x", "s3a://b/k", "jar:file:x!/", "a\n", "a b",
     "A", "ä", "-a", "", ".", "a" * 65, "$(id)", "`id`", "a;b", "a'b", 'a"b', "{{ var.x }}", "\u202ea", "a\r", "~root"]
)  # fmt: skip
TEXTS = st.one_of(NASTY, st.text(max_size=80), st.from_regex(r"[a-z0-9][a-z0-9_/.%-]{0,70}", fullmatch=True))
FILES = {
    path.name: path.read_bytes()
    for path in (REPOSITORY / "pipelines" / "flight_delays").iterdir()
    if path.suffix in (".yaml", ".sql")
}
ALLOWED = set("abcdefghijklmnopqrstuvwxyz0123456789_-")


@given(TEXTS)
def test_an_accepted_name_holds_nothing_but_the_allowed_characters(text):
    try:
        name = require_name(text, "pipeline")
    except ConfigError:
        return
    assert 1 <= len(name) <= 64
    assert set(name) <= ALLOWED
    assert name[0] not in "_-"


@given(TEXTS)
def test_an_accepted_topic_is_one_part_of_a_path_and_no_option(text):
    try:
        topic = require_topic(text)
    except ConfigError:
        return
    assert 1 <= len(topic) <= 249
    assert set(topic) <= ALLOWED | set("ABCDEFGHIJKLMNOPQRSTUVWXYZ.")
    assert topic[0] not in ".-"


@pytest.mark.parametrize("topic", ["prod-db.public.orders", "_schemas", "A", "a" * 249])
def test_topics_are_called_as_kafka_calls_them(topic):
    assert require_topic(topic) == topic


@pytest.mark.parametrize("topic", ["", ".", "..", ".locks", "-x", "a/b", "a b", "a\n", "a" * 250, "ä"])
def test_what_could_leave_a_folder_is_no_topic(topic):
    with pytest.raises(ConfigError, match="cannot name a topic"):
        require_topic(topic)


@given(TEXTS)
def test_every_folder_made_from_an_id_lies_below_the_home(text):
    home = Path("/srv/home")
    made = Settings(project=home, home=home).pipeline("p")
    for make in (
        lambda: Settings(project=home, home=home).pipeline(text).root,
        lambda: made.timeline(text),
        lambda: made.checkpoint(text),
        lambda: backfill_folder(made, text),
        lambda: Settings(project=home, home=home).archive(text),
    ):
        try:
            path = Path(make())
        except RivertwiceError:
            continue
        assert path.resolve().is_relative_to(home)
        assert "\n" not in str(path)


@given(TEXTS)
def test_an_accepted_savepoint_id_is_one_part_of_a_path(text):
    try:
        name = require_savepoint_id(text)
    except RivertwiceError:
        return
    assert set(name) <= ALLOWED


@given(TEXTS)
def test_an_accepted_key_stays_inside_the_store(text):
    try:
        key = require_key(text)
    except RequestError:
        return
    root = Path("/srv/store")
    assert Path("/srv/store", key).resolve() != root
    assert Path("/srv/store", key).resolve().is_relative_to(root)
    assert not set(key) & set("\x00\n\r\\%:$`'\" ")


def test_a_link_that_leads_out_of_the_store_is_not_followed(tmp_path):
    (tmp_path / "secret").write_text("s")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "file").symlink_to(tmp_path / "secret")
    (tmp_path / "store" / "folder").symlink_to(tmp_path)
    store = LocalStore(tmp_path / "store")
    for key in ("file", "folder/secret", "folder/new"):
        with pytest.raises(RequestError, match="by a link"):
            store.get(key)
        with pytest.raises(RequestError, match="by a link"):
            store.put(key, b"x")
    assert (tmp_path / "secret").read_text() == "s"


@given(
    st.sampled_from(
        ["gcs://b/x", "gs://", "abfss://c", "http://h/x", "s3://", "s3a://b", "file:///etc", "jar:file://x"]
    )
)
def test_a_place_of_another_scheme_is_refused(text):
    with pytest.raises(ConfigError):
        parse_place(text)


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True), st.text(max_size=20), NASTY, st.dates(),
    st.sampled_from(["1 hour", "9999999999 days", "-1 s", "\ud800", "${x}", "!!python/object/apply:os.system [id]"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=10), inner, max_size=4)),
    max_leaves=8,
)


def parse(files) -> None:
    """Accept, or refuse with a DefinitionError; anything else fails the test."""
    with contextlib.suppress(DefinitionError):
        parse_files(files, "p")


@st.composite
def changed_definitions(draw):
    """The real definition with one or two values, somewhere, replaced by anything."""
    definition = yaml.safe_load(FILES["pipeline.yaml"])
    for _ in range(draw(st.integers(1, 2))):
        node, parents = definition, []
        while isinstance(node, (dict, list)) and node and (not parents or draw(st.integers(0, 3))):
            key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
            parents.append((node, key))
            node = node[key]
        holder, key = parents[-1]
        holder[key] = draw(VALUES)
    return definition


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(changed_definitions())
def test_a_definition_with_any_value_is_accepted_or_refused_by_name(definition):
    try:
        text = yaml.safe_dump(definition, allow_unicode=True).encode()
    except (UnicodeEncodeError, yaml.YAMLError):
        return
    parse({**FILES, "pipeline.yaml": text})


@given(st.data())
def test_a_definition_with_damaged_bytes_is_accepted_or_refused_by_name(data):
    name = data.draw(st.sampled_from(sorted(FILES)))
    body = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    parse({**FILES, name: bytes(body)})


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        "a: " + "[" * 3_000 + "]" * 3_000,
        "a: " + "{b: " * 3_000 + "1" + "}" * 3_000,
        "a: &a [x]\n" + "".join(f"k{n}: &k{n} [*a, *a]\n" for n in range(50)),
        "&a [*a]",
        "? [a]\n: 1",
        "? {a: 1}\n: 1",
        "!!python/object/apply:os.system [id]",
        "name: !!binary x",
        "a: 2001-99-99",
        "a: !!timestamp x",
        "<<: 1",
        "\x00",
        "a: " + "9" * 5_000,
    ],
)
def test_a_hostile_yaml_is_refused_by_name(text):
    with pytest.raises(DefinitionError):
        parse_files({**FILES, "pipeline.yaml": text.encode()}, "p")


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=10)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
BODIES = st.one_of(st.binary(max_size=60), JSON.map(lambda value: json.dumps(value).encode()))


@given(BODIES)
def test_a_manifest_of_any_bytes_is_refused_by_name(data):
    with pytest.raises(RivertwiceError):
        Manifest.from_bytes(data)


@given(
    st.one_of(
        BODIES, st.fixed_dictionaries({"format": st.just(1), "epoch": JSON}).map(lambda v: json.dumps(v).encode())
    )
)
def test_a_lease_of_any_bytes_is_refused_by_name(data):
    with pytest.raises(ConfigError):
        decode_held(data)


@given(BODIES, st.integers(0, 5))
def test_an_offsets_file_of_any_text_is_refused_by_name(data, batch):
    with pytest.raises(RivertwiceError):
        parse_offsets(data.decode(errors="replace"), batch)
