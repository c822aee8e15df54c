"""The value of a YAML text that a person wrote, for every file that the product reads: bounded, and with one kind of error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

MOST_VALUES = 100_000
"""Values that a file may have, each alias counted as what it stands for: nine lines of aliases can stand for a thousand million."""


class UnreadableYamlError(yaml.YAMLError):
    """A text that is YAML, and is not read all the same."""


def compose_yaml(text: str | bytes) -> yaml.Node | None:
    """Return the nodes of a YAML text with their places; None if it is empty.

    Raises:
        yaml.YAMLError: it is not YAML, too deep, contains itself, or its aliases stand for more than `MOST_VALUES` values.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        count = 0 if root is None else _count(root, {})
    except RecursionError:
        message = "it is too deep; simplify it"
        raise UnreadableYamlError(message) from None
    if count > MOST_VALUES:
        message = f"with its aliases (*name) written out it has more than {MOST_VALUES} values; write fewer"
        raise UnreadableYamlError(message)
    return root


def _count(node: yaml.Node, counted: dict[int, int]) -> int:
    """Return how many values a node stands for; each node is visited once."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) in counted:
        if not counted[id(node)]:
            message = "an alias (*name) stands within what it is the name of; remove it"
            raise UnreadableYamlError(message)
        return counted[id(node)]
    counted[id(node)] = 0
    items = [each for pair in node.value for each in pair] if isinstance(node, yaml.MappingNode) else node.value
    total = 1
    for item in items:
        total += _count(item, counted)
    counted[id(node)] = total
    return total


def read_yaml(text: str | bytes, check: Callable[[yaml.Node | None], None] = lambda _: None) -> Any:
    """Return the value of a YAML text: of mappings, sequences and plain values; None if it is empty.

    Args:
        check: is given the nodes before they become values, which changes them; what it raises is raised. Parsing is most of the cost.

    Raises:
        yaml.YAMLError: as `compose_yaml`, or a value that Python cannot hold.
    """
    root = compose_yaml(text)
    check(root)
    try:
        return None if root is None else yaml.SafeLoader("").construct_document(root)
    except (RecursionError, AttributeError, TypeError, ValueError) as error:
        message = f"it holds a value that cannot be read ({type(error).__name__}: {str(error)[:200]}); simplify it"
        raise UnreadableYamlError(message) from None
