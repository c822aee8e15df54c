"""Parts: the partitions of several topics together, and how people see them."""

from __future__ import annotations

from rivertwice.log.addresses import Part, count, describe_parts, intersect, name_parts, of_topic, parts_of

A0, A1, B0 = Part("a", 0), Part("a", 1), Part("b", 0)


def test_one_topics_parts_are_named_by_number_and_several_topics_by_both() -> None:
    assert name_parts([A1, A0]) == {A0: "0", A1: "1"}
    assert name_parts([B0, A1, A0]) == {A0: "a/0", A1: "a/1", B0: "b/0"}
    assert name_parts([]) == {}


def test_ten_partitions_are_in_order_of_their_number() -> None:
    assert list(name_parts(Part("a", number) for number in (10, 9, 2)).values()) == ["2", "9", "10"]


def test_ranges_go_to_parts_and_back() -> None:
    both = {**parts_of("a", {0: (1, 4), 1: (0, 2)}), **parts_of("b", {0: (5, 9)})}
    assert both == {A0: (1, 4), A1: (0, 2), B0: (5, 9)}
    assert of_topic(both, "a") == {0: (1, 4), 1: (0, 2)}
    assert count(both) == 9
    assert intersect(both, {A0: (3, 9), B0: (9, 9)}) == {A0: (3, 4)}


def test_described_a_topic_is_named_once() -> None:
    assert describe_parts({A0: (1, 4), A1: (0, 2)}) == "a partition 0 [1, 4), partition 1 [0, 2)"
    assert describe_parts({B0: (5, 9), A0: (1, 4)}) == "a partition 0 [1, 4); b partition 0 [5, 9)"
