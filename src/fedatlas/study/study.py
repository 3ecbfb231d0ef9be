"""`Study`: a study file as a value, and its actions. What trains imports torch where it is called: looking needs none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.files import write_text
from fedatlas.study import study_status
from fedatlas.study.design import StudyFile, read_study_file, study_of, written_levels
from fedatlas.study.plain import Plain
from fedatlas.study.table import Table

RUNS = Path("runs") / "studies"  # default place of a study
TABLE = "table.sqlite"


class Study(NamedTuple):
    """A study: ``Study.read("STUDY.toml").run()``, then ``Table.open(path).frame()``."""

    file: StudyFile
    text: str = ""

    @classmethod
    def read(cls, path: Path | str) -> Study:
        """Read the study in a file; ConfigError for any error in it."""
        path = Path(path)
        return cls(read_study_file(path), path.read_text(encoding="utf-8"))

    @classmethod
    def of(cls, name: str, **tables: Any) -> Study:
        """Build a study from tables as keyword arguments; a base file is searched in the working directory."""
        return cls(study_of(tables, name, Path()))

    def folder(self, out: Path | None = None) -> Path:
        """Return the study's folder: ``out``, by default ``runs/studies/NAME``."""
        return out or RUNS / self.file.name

    def table(self, out: Path | None = None, table: Path | None = None) -> Path:
        """Return the path of its table of runs: ``table``, which studies may share, by default one in its folder."""
        return table or self.folder(out) / TABLE

    def run(
        self,
        out: Path | None = None,
        table: Path | None = None,
        say: Callable[[str], None] | None = None,
        cluster: str | None = None,
    ) -> bool:
        """Make all missing runs; return whether none failed. If killed at any time, a new call continues from there.

        ``cluster``: HOST:PORT of a Ray cluster, or "auto"; its nodes make the runs (`docs/cluster.md`).
        """
        from fedatlas.study.execute import execute
        from fedatlas.study.plan import plan_of

        plan, tell = plan_of(self.file), say or (lambda _: None)
        with closing(Table.open(self.table(out, table), write=True)) as kept:
            if self.text:
                write_text(self.folder(out) / "study.toml", self.text)
            for notice in plan.notices:
                tell(notice)
            return execute(plan, kept, tell, cluster)

    def analyse(self, out: Path | None = None, table: Path | None = None) -> Plain:
        """Write analysis.json and analysis.html of the runs so far; return the analysis (`study.analyse`)."""
        from fedatlas.study.analyse import analyse
        from fedatlas.study.cells import cells_of
        from fedatlas.study.configurations import Configurations
        from fedatlas.study.finished_part import finished
        from fedatlas.study.levels import factors_of

        kept, told = self.opened(out, table)
        factors, _ = factors_of(self.file, Configurations())
        with closing(kept):
            done = finished(cells_of(self.file, factors), self.file.table.seeds, kept.members(self.file.name))
            return analyse(kept, self.file.name, self.folder(out), told, done)

    def opened(self, out: Path | None = None, table: Path | None = None) -> tuple[Table, list[str]]:
        """Return its table of runs, in which only levels that the file has now count, and sentences on those that it had."""
        from fedatlas.study.configurations import Configurations
        from fedatlas.study.levels import factors_of

        factors, _ = factors_of(self.file, Configurations())
        kept = Table.open(self.table(out, table))
        return kept, kept.narrow(self.file.name, {one.name: {level.name for level in one.levels} for one in factors})

    def status(self, out: Path | None = None, table: Path | None = None) -> Plain:
        """Return its progress: runs by status, and why some have no result. Optional levels count, even if they are not there now."""
        with closing(Table.open(self.table(out, table))) as kept:
            levels = {one.name: {level.name for level in written_levels(one)} for one in self.file.table.factor}
            told = kept.narrow(self.file.name, levels)
            return study_status.status(kept, self.file.name) | {"notices": told}

    def dry_run(self, cluster: str | None = None) -> Plain:
        """Return cells, refusals, runs and hours, with ``cluster`` also those on its nodes; nothing is kept."""
        from fedatlas.study.plan import plan_of
        from fedatlas.study.study_preview import preview

        return preview(plan_of(self.file), cluster)
