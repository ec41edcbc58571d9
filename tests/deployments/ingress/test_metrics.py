"""The series of the ingress stay few, however many tenants and whatever they send."""

from deployments.ingress.metrics import IngressMetrics
from deployments.metrics import MOST_TENANTS, OTHER, STATUSES


def tokens_by_tenant(metrics: IngressMetrics) -> dict[str, float]:
    (family,) = [one for one in metrics.families() if one.name == "spindle_tenant_tokens"]
    sums: dict[str, float] = {}
    for sample in family.samples:
        tenant = sample.labels["tenant"]
        sums[tenant] = sums.get(tenant, 0.0) + sample.value
    return sums


def test_tenants_beyond_the_most_are_counted_together() -> None:
    names = [f"tenant-{number}" for number in range(MOST_TENANTS + 10)]
    metrics = IngressMetrics(names)
    before = sum(len(family.samples) for family in metrics.families())
    for status in STATUSES:
        for tenant in (*names, "an address without a key"):
            fields = {"status": int(status), "tenant": tenant}
            metrics.responded({**fields, "prompt_tokens": 1, "output_tokens": 2})
    counted = tokens_by_tenant(metrics)
    assert len(counted) == MOST_TENANTS + 1
    assert counted[names[0]] == 3 * len(STATUSES)
    assert counted[OTHER] == 10 * 3 * len(STATUSES)
    assert sum(len(family.samples) for family in metrics.families()) == before
