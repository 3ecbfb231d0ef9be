"""The data that left the clients, the setup of the run, and how to repeat it."""

from __future__ import annotations

import shlex
from typing import Any

from markupsafe import Markup

from fedatlas.data.by_name import OWNED
from fedatlas.privacy.mechanisms import of_table
from fedatlas.record.run_folder import BASELINES
from fedatlas.reporting.blocks import Block, Code, TermList, Text, lead, notice
from fedatlas.reporting.entries import Entry, Plain, Subject
from fedatlas.wording import count, facts_text


def left_blocks(subject: Subject) -> list[Block]:
    """Return the data that left a client, and the notices of the run."""
    s = subject.summary
    said = Markup("Sent by a client in each round: <b>{}</b>.").format(s["leaves"])
    out: list[Block] = [lead(said)]
    if s.get("privacy"):
        out.append(
            Text(
                "It was sent as described in the section on privacy. Rows and steps of single clients, and the training loss, are visible "
                "only in a simulation; no message contained a loss."
            )
        )
    elif s["algorithm"] not in BASELINES:
        out.append(
            Text(
                "It is sent with plain figures about the work: the numbers of rows and steps, and the mean training loss."
            )
        )
    if said_before := prepared_text(subject.preprocess):
        out.append(Text(said_before))
    unless = "" if s.get("privacy") else ", and nothing here was masked or perturbed unless stated above"
    out.append(
        Text(
            "This was a simulation on one machine. It shows what would be sent, not that it is safe to send: a model can reveal "
            f"information about its training rows{unless}."
        )
    )
    return [*out, *(notice(f"Notice: {said}") for said in s["notices"])]


def prepared_text(preprocess: Plain) -> str:
    """Return a sentence on the column summaries that clients sent before round 1 to prepare their rows in the same way; or ""."""
    told = told_before(preprocess)
    sent = f"Before round 1, each client sent once about its rows: {told}. For a client with one row, such sums are that row."
    return sent if told else ""


def told_before(preprocess: Plain) -> str:
    """Return what each client told about its rows before round 1; "" for nothing."""
    if not preprocess.get("bytes_up", 0):
        return ""
    rules, scale = preprocess.get("rules", ()), preprocess.get("scale")
    said = [
        (
            "sums of each column that is a number",
            scale in {"federated", "client"} and not all(r["categories"] for r in rules),
        ),
        ("the categories it holds", any(rule["categories"] for rule in rules)),
        ("counts of cells below thresholds, for the medians", preprocess.get("missing") == "median"),
        ("sums of the target", (preprocess.get("target_mean", 0.0), preprocess.get("target_sd", 1.0)) != (0.0, 1.0)),
    ]
    return ", ".join(words for words, happened in said if happened) or "sums of its values"


def repeat_blocks(entry: Entry) -> list[Block]:
    """Return the exact command and configuration of a folder, and the system it ran on."""
    summary = entry.subjects[0].summary
    baselines = any(s.summary.get("gain") for s in entry.subjects)
    flags = ["--baselines" if baselines else "--no-baselines"]
    price = any(s.summary.get("answer", {}).get("price") for s in entry.subjects)
    flags += ["--price"] if price else []
    flags += [f"--plugin {shlex.quote(file)}" for file in summary.get("plugins", ())]
    command = f"fedatlas run experiment.toml {' '.join(flags)}"
    made = [of_table(one) for one in (summary.get("privacy") or {}).get("mechanisms", ())]
    how = "Save the configuration below as experiment.toml and run the command. "
    how += (
        "The same plan and versions give the same bits."
        if all(one.repeats for one in made)
        else "Noise comes from the operating system, so another run differs by it."
    )
    if own := summary.get("module"):  # a custom network, which a file cannot name
        command = f'run(Experiment.read("experiment.toml", module=module), baselines={baselines}{", price=True" if price else ""})'
        how += f" Here module is a network of class {own} with the weights of the run's initial.safetensors (load_state_dict)."
    return [
        Text(how),
        Code(f"{entry.key}-command", "Command", command),
        Code(f"{entry.key}-config", "Configuration, every key", entry.config_text, "experiment.toml"),
        TermList([(term, value) for term, value in _facts(entry.subjects[0]) if value and value != OWNED]),
    ]


def _facts(subject: Subject) -> list[tuple[str, str]]:
    s = subject.summary
    plan: dict[str, Any] = s["plan"]
    cpu = s["cpu"]
    data: dict[str, Any] = s.get("data_facts", {})
    return [
        ("data", ". ".join(dict.fromkeys(str(data[key]) for key in ("citation", "licence") if data.get(key)))),
        ("read", str(data.get("read", ""))),
        ("units", str(data.get("units", ""))),
        (s["algorithm"], facts_text(s.get("algorithm_facts", {}))),
        *_planned(plan),
        ("processor", f"{cpu['model']}, {count(cpu['cores'], 'core')}; {' '.join(cpu['flags'])}"),
        ("system", s["system"]),
        ("versions", ", ".join(f"{name} {version}" for name, version in s["versions"].items())),
        ("commit", s["commit"] or ""),
        ("config hash", s.get("config_hash", "")),
    ]


def _planned(plan: Plain) -> list[tuple[str, str]]:
    """Return how it was computed. Parties that hold columns train no network."""
    workers = count(plan["workers"], "process", "processes")
    if "engine" not in plan:
        return [("workers", workers)]
    return [
        ("engine", f"{plan['engine']}, step {plan['step']} ({plan['reason']})"),
        ("steps", ". ".join(plan.get("steps", ()))),
        ("workers", f"{workers} of {count(plan['threads'], 'thread')}, chunk {plan['chunk']}"),
        ("precision", f"{plan['precision']} on {plan['device']}"),
    ]
