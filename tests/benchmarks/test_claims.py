"""README's comparisons are those of the kept results, and no others."""

import claims
import pytest
from claims import CLAIMS, command, differences, front_pages


def test_readme_says_what_the_results_say():
    assert list(differences(front_pages())) == []


def test_a_figure_that_differs_is_found():
    pages = front_pages()
    changed = pages["README.md"].replace("more in 16 of 16 cases", "more in 15 of 16 cases")
    assert changed != pages["README.md"]
    found = list(differences({**pages, "README.md": changed}))
    assert any(each.startswith("docs/results/rampa.md says: more in 16 of 16 cases") for each in found)
    assert any("compares without a claim" in each and "15 of 16" in each for each in found)


def test_a_comparison_without_a_claim_is_found():
    pages = front_pages()
    index = pages["docs/index.md"] + "\nIt is 3 times faster than all others.\n"
    found = list(differences({**pages, "docs/index.md": index}))
    assert found == ["docs/index.md compares without a claim: It is 3 times faster than all others."]


def test_rows_of_a_modified_tree_are_refused(monkeypatch):
    monkeypatch.setattr(claims, "MODIFIED_BEFORE", set())
    found = [each for each in differences(front_pages()) if "modified tree" in each]
    assert len(found) == sum(claims.made_of_modified_tree(claim) for claim in {claim.source for claim in CLAIMS})
    monkeypatch.setattr(claims, "made_of_modified_tree", lambda source: source.endswith("plans.md"))
    assert list(differences(front_pages())) == [
        "docs/results/plans.md has rows of a modified tree; commit, and make it anew"
    ]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text.__name__)
def test_a_claim_names_a_command_and_both_sides(claim):
    assert command(claim.source)
    assert claim.sides
