"""As much of `kustomize build` as our overlays use: resources, patches of maps, deletions, merged ConfigMaps, one namespace.

`kubectl kustomize` is asked whether it builds the same, where there is a kubectl.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]
KNOWN = {"apiVersion", "kind", "namespace", "resources", "patches", "configMapGenerator", "generatorOptions"}


def build(folder: Path) -> list[Document]:
    """Return the documents of a folder with a `kustomization.yaml`.

    Raises:
        AssertionError: it names a file that does not exist, or changes something that is not there.
    """
    plan = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(plan) <= KNOWN, set(plan) - KNOWN
    documents: list[Document] = []
    for name in plan["resources"]:
        path = folder / name
        assert path.exists(), f"{folder}: there is no {name}"
        documents += build(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for generated in plan.get("configMapGenerator", []):
        assert generated["behavior"] == "merge"
        assert plan["generatorOptions"] == {"disableNameSuffixHash": True}
        data = dict(pair.split("=", 1) for pair in generated.get("literals", []))
        data |= {name: (folder / name).read_text() for name in generated.get("files", [])}
        _only(documents, {"kind": "ConfigMap", "metadata": {"name": generated["name"]}})["data"] |= data
    for patch in plan.get("patches", []):
        text = (folder / patch["path"]).read_text() if "path" in patch else patch["patch"]
        change = yaml.safe_load(text)
        target = _only(documents, change)
        if change.get("$patch") == "delete":
            documents.remove(target)
        else:
            _merge(target, change)
    for document in documents if "namespace" in plan else ():
        document["metadata"]["namespace"] = plan["namespace"]
        for subject in document.get("subjects", []):
            subject["namespace"] = plan["namespace"]
    return documents


def name_of(document: Document) -> tuple[str, str]:
    """Return kind and name."""
    return document["kind"], document["metadata"]["name"]


def _only(documents: list[Document], wanted: Document) -> Document:
    matching = [each for each in documents if name_of(each) == name_of(wanted)]
    assert len(matching) == 1, f"{name_of(wanted)} is changed, and there are {len(matching)} of it"
    return matching[0]


def _merge(target: Document, change: Document) -> None:
    for key, value in change.items():
        assert not isinstance(value, list), f"{key}: lists are merged by rules that are not here"
        if isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value
