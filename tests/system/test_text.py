"""Text for people: nouns after counts."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import sortal
from sortal.system.text import numbered

# Words after a number that would be wrong after 1.
AFTER_MANY = re.compile(
    r" (?:[a-z-]+ )?(images|classes|categories|files|rows|epochs|runs|processes|clusters|cores|chunks|cells|labels|"
    r"decisions|are|have|do|were)\b"
)
MANY = {"len(images)", "result.k_true", "cell.runs", "len(new)"}  # always more than 1 where they stand: 1,797 digits


def test_a_noun_after_a_count_agrees_with_it() -> None:
    """No text says "1 classes": what is counted goes through `plural`, unless it is a constant."""
    found = []
    for path in sorted(Path(sortal.__file__).parent.rglob("*.py")):
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "plural"]
        inside = {id(part) for call in calls for part in ast.walk(call)}
        for node in nodes:
            parts = node.values if isinstance(node, ast.JoinedStr) and id(node) not in inside else []
            for value, text in pairwise(parts):
                if not (isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant)):
                    continue
                of = ast.unparse(value.value)
                counted = value.format_spec is not None or re.search(r"len\(|count|sum\(|\bn\b|\bk\b|epochs|images", of)
                if counted and AFTER_MANY.match(str(text.value)) and not (of.isupper() or of in MANY or "plural" in of):
                    found.append(f"{path.name}: {{{of}}}{text.value!s}")
    assert found == []


def test_a_name_that_is_taken_gets_the_next_number() -> None:
    assert [numbered("a", taken) for taken in ((), ("a",), ("a", "a (2)"), ("a (2)",))] == ["a", "a (2)", "a (3)", "a"]
