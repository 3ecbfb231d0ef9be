"""The sections of a report in order. Each is one record; a section without blocks is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fedatlas.reporting import columns_gain, columns_result, costs, gain, outcome, owners_result
from fedatlas.reporting.answer import answer_blocks
from fedatlas.reporting.attackers import attacker_blocks
from fedatlas.reporting.blocks import Block
from fedatlas.reporting.client_rows import held_blocks
from fedatlas.reporting.columns_leaks import columns_leak_blocks
from fedatlas.reporting.columns_privacy import label_privacy_blocks
from fedatlas.reporting.columns_trees import tree_blocks
from fedatlas.reporting.confusion import error_blocks, errors_over
from fedatlas.reporting.curves import curves
from fedatlas.reporting.drift import drift_blocks
from fedatlas.reporting.entries import COLUMNS, OWNERS, PARTY, ROWS, Entry, Subject
from fedatlas.reporting.epsilon_of_seeds import seeds_blocks
from fedatlas.reporting.guard import guard_blocks
from fedatlas.reporting.privacy import privacy_blocks
from fedatlas.reporting.reproduction import left_blocks, repeat_blocks
from fedatlas.reporting.view_attacks import leak_blocks


class ReportSection(NamedTuple):
    """A section: its place, and the function that returns its blocks.

    ``page`` covers all runs of the page together. ``run`` covers one run: on a page of one run it replaces ``page``, on a page of
    several it appears in each run's chapter. ``folder`` covers each folder named, at the end.
    """

    id: str
    title: str  # {party}: the party of the page, or the word for one; {parties}: for several; {run}: the folder
    nav: str  # name in the table of contents
    page: Callable[[Sequence[Entry]], Sequence[Block]] | None = None
    run: Callable[[Subject], Sequence[Block]] | None = None
    folder: Callable[[Entry], Sequence[Block]] | None = None
    pages: Sequence[str] = (ROWS,)  # kinds of page it appears on


SECTIONS = [
    ReportSection("answer", "The answer", "Answer", page=answer_blocks, pages=[ROWS, COLUMNS, OWNERS]),
    ReportSection("result", "Results", "Result", page=outcome.opening),
    ReportSection(
        "result", "Results", "Result", page=outcome.opening, run=columns_result.result_blocks, pages=[COLUMNS]
    ),
    ReportSection("result", "Results", "Result", page=outcome.opening, run=owners_result.result_blocks, pages=[OWNERS]),
    ReportSection(
        "coefficients", "The coefficients", "Coefficients", run=owners_result.coefficient_blocks, pages=[OWNERS]
    ),
    ReportSection("gain", "What does each owner gain?", "Gain", run=owners_result.gain_blocks, pages=[OWNERS]),
    ReportSection("result", "About this page", "Start", run=columns_result.party_blocks, pages=[PARTY]),
    ReportSection("gain", "What does each {party} gain?", "Gain", page=gain.gain_over, run=gain.gain_blocks),
    ReportSection(
        "gain",
        "Would a party's columns help?",
        "Gain",
        page=columns_gain.columns_gain_over,
        run=columns_gain.columns_gain_blocks,
        pages=[COLUMNS],
    ),
    ReportSection("curves", "Learning curves", "Learning", page=curves, pages=[ROWS, COLUMNS]),
    ReportSection(
        "importance", "What each party contributed", "Importance", run=columns_result.importance_blocks, pages=[COLUMNS]
    ),
    ReportSection(
        "importance",
        "What the columns of {party} contribute",
        "Importance",
        run=columns_result.importance_blocks,
        pages=[PARTY],
    ),
    ReportSection("trees", "The trees", "Trees", run=tree_blocks, pages=[COLUMNS, PARTY]),
    ReportSection("attackers", "The attackers and the defence", "Attackers", run=attacker_blocks),
    ReportSection("drift", "How the model followed the drift", "Drift", run=drift_blocks),
    ReportSection("guard", "Which models were committed", "Versions", run=guard_blocks),
    ReportSection("privacy", "What was protected, and from whom", "Privacy", page=seeds_blocks, run=privacy_blocks),
    ReportSection(
        "privacy",
        "What was protected, and from whom",
        "Privacy",
        page=seeds_blocks,
        run=label_privacy_blocks,
        pages=[COLUMNS],
    ),
    ReportSection("leaks", "What a party could have learnt", "Leaks", run=leak_blocks),
    ReportSection("held", "Data of each {party}", "Data", run=held_blocks),
    ReportSection("held", "Data of each party", "Data", run=columns_result.parties_blocks, pages=[COLUMNS, PARTY]),
    ReportSection("held", "Data of each owner", "Data", run=owners_result.held_blocks, pages=[OWNERS]),
    ReportSection("cost", "What it cost", "Cost", run=costs.cost_blocks),
    ReportSection("cost", "What it cost", "Cost", run=costs.columns_cost_blocks, pages=[COLUMNS, OWNERS]),
    ReportSection("errors", "Errors of the model", "Errors", page=errors_over, run=error_blocks),
    ReportSection("left", "What the {parties} sent", "Sent", run=left_blocks),
    ReportSection("left", "What each party could learn", "Leaks", run=columns_leak_blocks, pages=[COLUMNS, PARTY]),
    ReportSection("left", "What each role could learn", "Leaks", run=owners_result.leak_blocks, pages=[OWNERS]),
    ReportSection("repeat", "Repeat {run}", "Repeat", folder=repeat_blocks, pages=[ROWS, COLUMNS, OWNERS]),
]


TITLES: Mapping[str, Callable[[Sequence[Entry]], str]] = {
    ROWS: outcome.run_title,
    COLUMNS: lambda entries: (outcome.run_title if len(entries) > 1 else columns_result.columns_title)(entries),
    PARTY: columns_result.party_title,
    OWNERS: lambda entries: (outcome.run_title if len(entries) > 1 else owners_result.owners_title)(entries),
}
"""Kind of page -> its title."""
