"""Sentences about a matching of rows between parties, and about the preview of a run that needs one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.privacy.mechanisms import made
from fedatlas.runs.privacy_preview import of_changed
from fedatlas.wording import bytes_text, capital, count, seconds_text


def length(shortest: int, longest: int) -> str:
    """Return the length of ids as text."""
    return f"{shortest}" if shortest == longest else f"{shortest} to {longest}"


def sentences(found: dict[str, Any]) -> list[str]:
    """Return sentences about the result of a matching, or about its preview."""
    ids, out = found["ids"], []
    for name, n in ids.items():
        label = ", which holds the label" if name == found["active"] else ""
        out.append(f"{name}: {n:,} ids{label}.")
    linked = found["align"].get("linked", False)
    if "keys" in found["align"]:
        out += [f"Ids of {name} are made of {made}." for name, made in found["made_of"].items()]
    took = f"{bytes_text(found['bytes'])} in {seconds_text(found['seconds'])}"
    if "rows" not in found:
        for name, one in found["looks"].items():
            out.append(
                f"Ids of {name}: {length(one['shortest'], one['longest'])} characters, {one['digits']:.0%} only digits, "
                f"{one['zeros']:.0%} with leading zeros, {one['letters']:.0%} with letters."
            )
        for name, counts in found.get("ambiguous", {}).items():
            left = ", ".join(f"{n:,} by key {k}" for k, n in enumerate(counts, 1))
            out.append(f"Rows of {name} that share their id with another row, and would be left out: {left}.")
        most = "at most" if linked else "about"
        out.append(f"Matching would send {most} {took}. Nothing was sent.")
    else:
        if len(ids) > 2:
            out += [f"{pair}: {n:,} rows in common." for pair, n in found["common"].items()]
        out += passes_text(found.get("passes", ()))
        shares = ", ".join(f"{found['rows'] / max(n, 1):.1%} of {name}'s" for name, n in ids.items())
        out.append(f"All parties have {found['rows']:,} rows in common: {shares}.")
        out.append(f"Sent {took}.")
        out.append(LEARNT[min(len(ids), 3)])
        out += [LINKED] if linked else []
    return [*out, *(f"Notice: {said}" for said in found["notices"])]


def passes_text(passes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each key of a linkage."""
    out = []
    for k, one in enumerate(passes, 1):
        tried = ", ".join(f"{n:,} of {name}" for name, n in one["ids"].items())
        left = ", ".join(f"{n:,} of {name}" for name, n in one["ambiguous"].items())
        out.append(
            f"Key {k}: {count(one['rows'], 'row')} matched; tried: {tried}; left out because another row has the same id: {left}."
        )
    return out


def expectations(found: dict[str, Any]) -> list[str]:
    """Return sentences about a dry run of parties that hold columns, or rows of the same columns."""
    if "owners" in found:
        return of_owners(found)
    lines = sentences({**found, "bytes": found["bytes_alignment"], "seconds": found["seconds_alignment"]})
    notices = [line for line in lines if line.startswith("Notice")]
    head = [line.removesuffix(" Nothing was sent.") for line in lines if not line.startswith("Notice")]
    kind = "encrypted" if found["protected"] else "in the clear"
    cost = f"{bytes_text(found['bytes_per_tree'])} and take {seconds_text(found['seconds_per_tree'])}"
    seeds = f", of {found['seeds']} seeds," if found["seeds"] > 1 else ""
    which = "all" if found["trees_before"] == found["trees"] else f"the first {found['trees_before']}"
    before = f", {which} on columns of {found['active']} only," if found["trees_before"] else ""
    one = (
        f"One {found['round']}, {kind}, would send about {cost}, if all {found['rows_at_most']:,} rows of the smallest table were common; "
        f"{found['trees']} of them{before} with the matching{seeds} {bytes_text(found['bytes'])} and {seconds_text(found['seconds'])}."
    )
    protected = [line for name in found["privacy"]["mechanisms"] for line in made(name).words.preview(found["privacy"])]
    return [*head, one, *protected, *of_changed(found["privacy"]), *notices, "Nothing was matched or trained."]


def of_owners(found: dict[str, Any]) -> list[str]:
    """Return sentences about a dry run of owners of rows."""
    rows = ", ".join(f"{name} {n:,}" for name, n in found["owners"].items())
    error = (
        "with no bound of its error below the label's spread"
        if found["error"] is None
        else f"which changes no prediction by more than {found['error']:.2g}"
    )
    seeds = f", {found['seeds']} seeds" if found["seeds"] > 1 else ""
    return [
        f"Rows: {rows}; {count(found['columns'], 'column')}, {found['rows']:,} rows to train on.",
        f"{capital(found['said'])}{seeds}.",
        f"Numbers have {found['precision']} bits after the point, {error}.",
        f"{count(found['ciphertexts'], 'ciphertext')}; about {bytes_text(found['bytes'])} and {seconds_text(found['seconds'])}.",
        *(f"Notice: {said}" for said in found["notices"]),
        "Nothing was sent or trained.",
    ]


LINKED = (
    "By each further key every party also learnt which of its rows without a match agree with another's in that key, and how many "
    "rows the others tried. A matched pair may still be two people."
)
"""Sentence about what several keys in turn reveal, after one of `LEARNT`."""

LEARNT = {
    2: "Each party learnt which of its rows the other has, and how many ids the other has; no id crossed in the clear.",
    3: "Each party learnt which of its rows all others have; the party with the label and the coordinator learnt the sizes of all "
    "overlaps, no id.",
}
"""Number of parties (3: or more) -> what each role learns from a matching."""
