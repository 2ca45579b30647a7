"""Values gathered by their keys, in their order."""

from sortal.system.gathering import gathered


def test_values_of_a_key_are_gathered_in_their_order() -> None:
    found = gathered([("b", 1), ("a", 2), ("b", 3)])
    assert [*found.items()] == [("b", [1, 3]), ("a", [2])]
    assert gathered(()) == {}
