"""OracleSelection finds the best matching of the true goodputs."""

from lab.studies.selection_oracle import OracleSelection
from tests.policies.selection.play import CONTEXT, lane, request, requests, slot

TRUTH = {
    ("r", "a"): 9.0,
    ("r", "b"): 2.0,
    ("s", "a"): 10.0,
    ("s", "b"): 8.0,
    ("t", "a"): 4.0,
    ("t", "b"): 3.0,
}


def goodput(name: str, drafter: str | None) -> float:
    return 5.0 if drafter is None else TRUTH[name, drafter]


def test_it_maximises_the_sum_under_capacities_with_plain_decoding() -> None:
    lanes = [lane("a", 1), lane("b", 2)]
    chosen = OracleSelection(goodput).assign(requests("r", "s", "t"), lanes, CONTEXT, 0.0)
    assert chosen == {"r": "a", "s": "b", "t": None}


def test_it_follows_true_goodputs_that_change() -> None:
    truth = {"a": 9.0, "b": 8.0}
    policy = OracleSelection(lambda _, drafter: truth[drafter] if drafter else 1.0)
    here, lanes = requests("r"), [lane("a"), lane("b")]
    assert slot(policy, here, lanes, goodput)["r"] == "a"
    truth["b"] = 20.0
    assert policy.likely_next("r") == "b"
    assert [slot(policy, here, lanes, goodput)["r"] for _ in range(6)][-1] == "b"


def test_it_switches_only_where_that_pays_before_the_request_ends() -> None:
    truth = {"a": 10.0, "b": 9.0}
    lanes = [lane("a", catch_up_s=1e-3), lane("b", catch_up_s=1e-3)]
    view = request("r", prompt_len=1000, max_tokens=100)
    policy = OracleSelection(lambda _, drafter: truth[drafter] if drafter else 1.0)
    assert policy.assign([view], lanes, CONTEXT, 0.0) == {"r": "a"}
    truth["b"] = 12.0  # a second of catch-up, against 10 s on a and 8.3 s on b
    gone = lanes[:1]
    policy.assign([view], gone, CONTEXT, 0.0)
    assert policy.assign([view], lanes, CONTEXT, 0.0) == {"r": "b"}
    view.generated = 90  # 1 s on a, 1.8 s by way of b
    policy = OracleSelection(lambda _, drafter: truth[drafter] if drafter else 1.0)
    policy.assign([view], gone, CONTEXT, 0.0)
    assert policy.assign([view], lanes, CONTEXT, 0.0) == {"r": "a"}
