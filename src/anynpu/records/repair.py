"""What a repair of a build that missed its gate came to."""

from __future__ import annotations

from dataclasses import dataclass

from anynpu.schema import about


@dataclass(frozen=True, kw_only=True)
class Repair:
    """One repair: what was changed, what it gained, and whether it was kept."""

    repair: str
    options: str = about("the same as options of `anynpu build`")
    before_db: float | None = about("SQNR of the worst output of the best build so far", None)
    after_db: float | None = about("SQNR of the worst output with the repair", None)
    kept: bool = False
    holds: bool = about("the gate holds with it", False)
    note: str = about("why it could not be tried", "")

    @property
    def sentence(self) -> str:
        """What the repair came to, for people."""
        said = f"repair {self.repair} ({self.options})"
        if self.after_db is None or self.before_db is None:
            return f"{said}: not possible: {self.note}"
        gain = f"{said}: {self.before_db:.1f} to {self.after_db:.1f} dB"
        if self.holds:
            return f"{gain}; the gate holds"
        return f"{gain}; kept, the gate does not hold yet" if self.kept else f"{gain}; not kept"
