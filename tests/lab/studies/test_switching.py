"""What reading ahead is compared with, and what it counts."""

from lab.studies.mixed_load import workload
from lab.studies.switching import SELECTIONS, compare


def test_drafters_with_processors_of_their_own_read_ahead_more_than_those_without() -> None:
    requests = workload(1, 24)
    found = {
        apart: {
            record.name.removeprefix("load/"): record
            for record in compare("load", requests, SELECTIONS["lbss"], apart)
        }
        for apart in (False, True)
    }
    for records in found.values():
        assert records["throughput"].reference is not None
        assert 0 <= records["hit_rate"].value <= 1
    shared, own = found[False], found[True]
    assert shared["spent"].value < 0.05 < own["spent"].value
    assert shared["hit_rate"].value < own["hit_rate"].value
    assert shared["saved"].value < own["saved"].value
    assert shared["throughput"].reference == own["throughput"].reference, "nothing read ahead"
