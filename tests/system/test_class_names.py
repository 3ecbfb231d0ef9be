"""A public class has a name of its own in the whole house, but for some that no reader mixes up."""

from __future__ import annotations

import ast

from test_architecture import module_name, parsed, room, sources

# Classes of one name in two rooms, and why that is no trap.
SAME_NAME = {
    "Answer": "of a party to its requests; of a run to whether to federate",
    "Asked": "what a mechanism or a policy is shown before it says no",
    "Axis": "of a tensor's units; of a picture",
    "Batch": "of rows; of ciphertexts under one key: seen inside privacy/paillier alone",
    "Fixed": "numbers as integers, for masks and for sums of gradients: each inside its own folder",
    "Found": "files of a data set; lines of an audit log; all that an audit of a run found",
    "Head": "of any request; of a masked ask, which is told beside it",
    "Layout": "of a pool's shared memory; of codes in a plaintext",
    "Limits": "of a group's size, inside one file; of a mechanism, a field of its record",
    "Member": "of a stack of clients; of a federation's bundle",
    "Memory": "of an optimiser; of parties with columns",
    "Network": "what an algorithm may call, and the module behind it",
    "Node": "of a drawn tree; of a cluster",
    "Nodes": "of a deployment, as the link to them; of a cluster",
    "Panel": "of a published figure; of a picture",
    "Parties": "of a round, inside one file; the public tables of several parties",
    "Place": "in a program; of an ask in its run",
    "Rows": "of a client; of parties with columns: the same thing in either world",
    "Side": "of a key, inside privacy/paillier; of an alignment, inside one file",
    "Trial": "of a round, for its cost: a field's type in the record of a mechanism, and of a scheme",
    "Unit": "of clients drawn together; of a number in a row's annotation",
    "Words": "a record's texts: those of a mechanism, and of a scheme",
    "Work": "done by a client; done by a mechanism: the field of its record",
}


def test_classes_of_one_name_in_two_rooms_are_not_mixed_up():
    """A public name stands for one thing; where two rooms have the same, it says in `SAME_NAME` why no reader mixes them."""
    rooms: dict[str, set[str]] = {}
    for path in sources():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                rooms.setdefault(node.name, set()).add(room(module_name(path)).split(".")[0])
    assert {name for name, found in rooms.items() if len(found) > 1} == {*SAME_NAME}
