"""Patterns of rules: which engine matches them, and which are refused when a definition is read."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.definition.patterns import JAVA_ENGINE, RE2, PatternError, match_whole, matcher_of

STEADY = (
    r"[a-z][a-z0-9]{0,15}", r"[A-Z]{3}", r"[A-Z0-9]{2}", r"u[0-9]+", r"[A-Z]+-[0-9]+", r"[0-9]+(?:\.[0-9]+)?", r".*", r"(?s).+",
    r"(?!000)\d{3}", r"\d{4}-\d{2}-\d{2}(T.*)?", r"\w+@\w+\.\w+", r"a|b|cd", r"(?i)ab[c-e]", r"\bA$", r"a?b?c?", r"[^,]*,[^,]*",
)  # fmt: skip
UNSTEADY = (
    r"(a|b)*", r"(?:a|b)*", r"(a+)+b", r"(?:[a-z0-9]+\.)*[a-z]+", r".*x.*y", r".+@.+", r"[a-z]*[a-z0-9]*x", r".{2,}", r"(ab){3}",
    r"[a-z0-9]{0,900}[a-z]{0,900}", r".{0,900}", r"(?i)(k|K)*", r"a*?b*?a*?", r"(\)|a)*", r"(\d|\s|\w)*\W+",
)  # fmt: skip
REFUSED = {
    r"(a*)\1": "read differently",
    r"(a|b)*(?=c)": "look ahead or behind",
    r"(?>a)b": "atomic group",
    r"a*+b": "possessive",
    r"(ab)*\b": "word boundary",
    r".{0,5000}": "1,000",
    r"[[:alpha:]]": "read differently",
    r"[a&&b]": "read differently",
    r"(?P<x>a)": "read differently",
    r"a{,5}": "read differently",
    r"\v": "read differently",
    r"(?m)^a": "flags",
    r"(?i:a)(b|c)*": "its own flags",
}


@pytest.mark.parametrize("pattern", STEADY)
def test_a_steady_pattern_stays_with_java(pattern: str) -> None:
    assert matcher_of(pattern).engine == JAVA_ENGINE


@pytest.mark.parametrize("pattern", UNSTEADY)
def test_a_pattern_that_could_backtrack_goes_to_re2_and_ends_at_once(pattern: str) -> None:
    matcher = matcher_of(pattern)
    assert matcher.engine == RE2
    values = pa.array(["ab" * 500_000, "x" * 1_000_000, "a" * 1_000_000 + "!", "a😀" * 300_000, "\x00" * 1_000_000])
    assert len(match_whole(values, matcher.text)) == 5  # an engine that backtracks would not come back


@pytest.mark.proves("definitions.md#rules")
@pytest.mark.parametrize(("pattern", "why"), REFUSED.items())
def test_what_no_engine_matches_safely_is_refused_with_the_reason(pattern: str, why: str) -> None:
    with pytest.raises(PatternError, match=why):
        matcher_of(pattern)


@given(st.sampled_from(UNSTEADY), st.text("abxyzkK\u017f019.@)!\n\r\x0b\u2028😀 ", max_size=12))
def test_re2_is_given_the_same_language(pattern: str, value: str) -> None:
    """Python's engine is the oracle; it has Java's `.`, and Java's ASCII classes, when it is told so."""
    told = pattern if pattern.startswith("(?") else f"(?a){pattern}"
    told = told.replace("(?i)", "(?ia)")
    plain = re.sub(r"(?<!\\)\.", r"[^\\n\\r\\x85\\u2028\\u2029]", told) if "[" not in pattern else told
    expected = re.compile(plain).fullmatch(value) is not None
    if "." in pattern and "[" in pattern and any(end in value for end in "\r\u2028"):
        return
    assert match_whole(pa.array([value]), matcher_of(pattern).text).to_pylist() == [expected]


def test_a_null_stays_null() -> None:
    assert match_whole(pa.array([None, "ab"]), matcher_of("(a|b)*").text).to_pylist() == [None, True]
