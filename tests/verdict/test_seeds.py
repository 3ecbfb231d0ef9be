"""The answer over seeds: at least three, parties by their names, one figure for all."""

from __future__ import annotations

import json

from support.judged_offices import SHARES, office_rows

from fedatlas.verdict.answer import answer, of_plain, over
from fedatlas.verdict.sentences import text


def test_several_seeds_need_three_and_name_parties_that_stay_the_same():
    each = [answer(SHARES, [office_rows(0, 300, 0.95, 0.5, seed=s)], s, f"rows {s}", 1200) for s in (1, 2, 3)]
    assert text(over(each[:2], 100.0, same_parties=True)).endswith(
        "2 seeds are too few for a verdict over seeds: give 3 or more. Always answering 'no' reaches "
        f"{(each[0].trivial + each[1].trivial) / 2:.3f}."  # type: ignore[operator]
    )
    whole = over(each, 100.0, same_parties=True)
    assert (whole.verdict, [p.fate for p in whole.parties]) == ("yes", ["gains"])
    assert over(each, 100.0, same_parties=False).parties == []
    assert of_plain(json.loads(json.dumps(whole.plain()))) == whole


def test_a_party_that_is_another_client_in_some_seeds_is_found_by_its_name():
    """An owner whose only row is a test row is no client, and those behind it move up by one."""
    few = [office_rows(1, 300, 0.95, 0.5, seed=s)._replace(client=k) for s, k in enumerate((1, 0, 1))]
    worse = [office_rows(2, 300, 0.5, 0.95, seed=s)._replace(client=k) for s, k in enumerate((2, 1, 2))]
    each = [answer(SHARES, [a, b], s, f"rows {s}", 1200) for s, (a, b) in enumerate(zip(few, worse, strict=True))]
    found = over(each, 100.0, same_parties=True)
    assert [(p.name, p.fate) for p in found.parties] == [("Tirol", "gains"), ("Lienz", "loses")]
    once = each[0]._replace(parties=[*each[0].parties, each[0].parties[0]._replace(client=7, name="Wien")])
    assert over([once, *each[1:]], 100.0, same_parties=True).parties == found.parties, "one seed names nobody"


def test_seeds_judged_by_different_figures_have_no_mean():
    """Where the classes are about 1.5 times as uneven, some seeds have training rows that ask for AUC and others not."""
    each = [answer(SHARES, [office_rows(0, 300, 0.95, 0.5, seed=s)], s, f"rows {s}", 1200) for s in (1, 2, 3)]
    each[1] = each[1]._replace(asked=each[1].asked._replace(figure="auc", words="AUC"))
    found = over(each, 100.0, same_parties=True)
    assert (found.verdict, found.together, found.gain, found.parties) == ("cannot tell", None, None, [])
    assert text(found) == (
        "These data cannot tell whether to federate with FedAvg: the seeds are judged by different figures (accuracy and AUC), "
        "which have no mean. Name one (evaluation.metric), and run again."
    )
    assert of_plain(json.loads(json.dumps(found.plain()))) == found
