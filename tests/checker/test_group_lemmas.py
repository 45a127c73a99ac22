"""Lemmas about the least time through a group: what does not follow is refused."""

import json
from hashlib import sha256

import pytest

from checker.cases import certified, files_of
from tvm_sched.schedulers import solve
from tvm_sched_check import Refused
from variant_cases import blocks_in_halves


@pytest.fixture
def files():
    problem = blocks_in_halves(2)
    return files_of(problem, certified(problem, solve(problem, method="anytime", options={"work": 0.2})))


def lemmas_of(files):
    return [lemma for lemma in files.evidence["lemmas"] if lemma["rule"] == "alternatives"]


def test_what_lies_between_is_proved_for_each_way(files, folder):
    assert [(lemma["ns"], list(lemma["alternatives"])) for lemma in lemmas_of(files)] == [(90, ["fused", "halves"])] * 2
    verdict = files.check(folder)
    assert verdict.latency_ns == verdict.proved_ns == 200


def claim_more(lemma):
    lemma["ns"] += 1


def claim_more_of_an_alternative(lemma):
    lemma["alternatives"]["halves"][-1]["ns"] += 1


def leave_out_an_alternative(lemma):
    del lemma["alternatives"]["halves"]


def take_the_alternatives_of_another_group(lemma):
    lemma["group"] = "block1"


def take_another_tensor(lemma):
    lemma["tensor"] = "y0"


def end_at_another_operator(lemma):
    lemma["last"] = "last"


def end_at_a_head(lemma):
    lemma["last"] = "block0/head0"


def begin_at_another_operator(lemma):
    lemma["first"] = "block1"


def leave_out_where_it_begins(lemma):
    del lemma["first"]


def rest_on_alternatives_of_alternatives(lemma):
    lemma["alternatives"]["halves"].insert(0, {**lemma, "alternatives": {}})


WRONG = [
    claim_more, claim_more_of_an_alternative, leave_out_an_alternative, take_the_alternatives_of_another_group,
    take_another_tensor, end_at_another_operator, end_at_a_head, begin_at_another_operator, leave_out_where_it_begins,
    rest_on_alternatives_of_alternatives,
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG)
def test_what_does_not_follow_is_refused(files, folder, change):
    change(lemmas_of(files)[0])
    with pytest.raises(Refused):
        files.check(folder)


def test_a_way_that_is_faster_than_the_lemma_says_is_found(files, folder):
    """The same lemmas of a problem in which a tail takes less."""
    document = json.loads(files.problem)
    document["variants"]["costs"]["operator_ns"][2] = [5, 5]
    files.problem = json.dumps(document).encode()
    files.schedule["problem"] = files.evidence["problem"] = sha256(files.problem).hexdigest()[:16]
    with pytest.raises(Refused):
        files.check(folder)
