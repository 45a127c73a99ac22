"""README's comparisons are those of the kept results, and no others."""

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


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text.__name__)
def test_a_claim_names_a_command_and_both_sides(claim):
    assert command(claim.source)
    assert claim.sides
