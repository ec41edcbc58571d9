"""Sums of what several replicas have observed."""

from policies.pooling import summed


def test_sums_are_by_learner_and_name() -> None:
    parts = [{"one": {"x": [1.0, 2.0]}}, {"one": {"x": [4.0, 4.0], "y": [1.0]}, "two": {}}]
    assert summed(parts) == {"one": {"x": [5.0, 6.0], "y": [1.0]}, "two": {}}
    assert parts[0]["one"]["x"] == [1.0, 2.0], "the summands are not changed"
    of_another_version = {"one": {"x": [1.0] * 3}}
    assert summed([*parts, of_another_version]) == summed(parts)
