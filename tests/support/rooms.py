"""Which room may import which others (docs/architecture.md)."""

from __future__ import annotations

# Room -> the rooms it may import besides itself. A room is a file or a folder of src/fedatlas; where a part of a
# folder has stricter rules than the rest, it has its own line (the longest name wins).
BASE = {"errors", "rng", "apportion", "tree", "grammar", "algorithm"}
RECORDS = {"errors", "rng", "apportion", "algorithm"}
PARTS = BASE | {
    "registry",
    "rounds",
    "aggregation",
    "transforms",
    "privacy",
    "attacks",
    "data",
    "models",
    "metrics",
    "layers",
}
METHODS = {"algorithms", "weighting", "vertical"}
SEAM = {"secret", "wire.codec", "federation.link", "federation.sealing"}  # what crosses, and how it is sealed
SETUP = PARTS | METHODS | SEAM | {"summaries", "machine", "model", "engine", "federation", "config"}
RECORD = SETUP | {"files", "plugins", "setup"}
COURSE = RECORD | {"record", "wording"}
RUNS = COURSE | {
    "cluster",
    "cluster.estimate",
    "cluster.executor",
    "course",
    "leakage",
    "reporting",
    "tracking",
    "verdict",
}
WRITTEN = {"errors", "files", "wording", "config", "record"}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "rng": set(),
    "secret": {"errors"},
    "model": set(),
    "apportion": set(),
    "wording": set(),
    "overrides": {"errors"},
    "spelling": {"errors", "overrides"},
    "registry": {"errors", "spelling"},
    "files": {"errors"},
    "machine": {"registry"},
    "cluster": {"errors", "machine"},  # it knows no runs and no clients
    "tree": {"errors"},
    "grammar": set(),
    "algorithm": {"errors", "tree", "grammar"},
    "layers": {"errors", "tree"},
    "rounds": BASE,
    "weighting": BASE,
    "aggregation": BASE | {"registry"},
    "transforms": BASE | {"registry"},
    "privacy": BASE | {"secret", "registry", "aggregation", "transforms", "wording"},
    "algorithms": BASE | {"registry", "rounds", "weighting", "aggregation", "layers"},
    "vertical": BASE
    | {"secret", "registry", "rounds", "aggregation", "transforms", "privacy", "model", "models", "metrics"},
    "attacks": BASE | {"registry", "aggregation", "data", "metrics"},
    "wire.heads": set(),
    "wire.codec": {"errors", "tree", "wire.heads"},
    "summaries": {"errors", "wire.codec"},
    "data": RECORDS | {"registry", "spelling", "files", "summaries", "wire.codec"},
    "models": RECORDS | {"registry", "spelling", "tree", "layers"},
    "metrics": RECORDS | {"machine"},
    "verdict": {"metrics", "wording"},
    "federation.link": {"errors", "algorithm", "tree"},
    "federation.sealing": {"errors", "algorithm", "tree", "federation.link"},
    "engine": PARTS | SEAM,
    "federation": PARTS | SEAM | {"engine", "files", "vertical"},
    "wire": {"errors", "files", "secret", "wire.heads"},  # it knows no experiment
    "config": {"errors", "overrides", "registry", "files", "data", "models", "privacy", "attacks", "vertical"},
    "plugins": {"errors", "registry", "aggregation", "algorithms", "transforms", "data", "models"},
    "setup": SETUP | {"spelling"},
    "record": RECORD,
    "course": COURSE,
    "tracking": COURSE | {"course"},
    "reporting": WRITTEN | {"registry", "aggregation", "attacks", "data", "metrics", "privacy", "verdict", "vertical"},
    "anonymisation": {"errors", "files", "wording", "data", "privacy", "reporting"},
    "cluster.parcels": {"wire.codec"},
    "cluster.bench": RECORD | {"record"},
    "cluster.executor": RECORD | {"cluster", "cluster.bench", "cluster.parcels"},
    "cluster.estimate": {"cluster", "wording"},
    "runs": RUNS,
    "cluster.engine_handler": RUNS | {"runs", "cluster.bench", "cluster.parcels"},
    "prediction": COURSE | {"course"},
    "leakage": COURSE,
    "auditing": COURSE | {"leakage", "reporting", "verdict"},
    "deployment": RUNS | {"spelling", "runs", "wire"},
    "study": RUNS | {"runs", "cluster"},
    "race": RUNS | {"runs", "study"},
    "recommender": RUNS | {"runs", "study", "race"},
    "comparison": RUNS | {"runs", "study"},
    "comparison.calls": RUNS | {"runs", "study", "comparison", "api", "notebook"},
    "published": WRITTEN
    | {"machine", "metrics", "privacy", "setup", "course", "leakage", "reporting", "runs", "study"}
    | {"rng", "data", "deployment", "aggregation", "attacks"},
    "catalogue": PARTS | METHODS | {"machine", "config", "setup", "published"},
    "notebook": COURSE | {"course", "reporting", "prediction", "verdict"},
    "estimators": RUNS | {"runs", "prediction", "api"},
    "api": RUNS | {"spelling", "auditing", "runs", "prediction", "notebook"},
    "terminal": {"errors", "engine", "wording", "record", "course"},
    "watching": {"errors", "wording", "terminal"},
    "commands": {"api", "leakage", "config", "spelling", "errors", "files", "plugins", "prediction", "record", "runs"},
    "cli_anonymise": {"errors", "commands", "anonymisation"},
    "cli_study": {"errors", "commands", "study", "recommender"},
    "cli_compare": {"errors", "commands", "comparison", "terminal"},
    "cli_deploy": {"errors", "commands", "deployment", "wire", "wording"},
    "cli": {
        "api",
        "auditing",
        "catalogue",
        "cli_anonymise",
        "cli_compare",
        "cli_deploy",
        "cli_study",
        "commands",
        "config",
        "errors",
        "files",
        "leakage",
        "plugins",
    }
    | {"prediction", "published", "record", "reporting", "runs", "terminal", "watching"},
}
