"""What a repair of a build that missed its gate came to."""

from __future__ import annotations

from dataclasses import dataclass

from anynpu.schema import about

MOST_NAMED = 12
"""How many tensors a sentence names."""


@dataclass(frozen=True, kw_only=True)
class Repair:
    """One repair: what was changed, what it gained, and whether it was kept."""

    repair: str
    options: str = about("the same as options of `anynpu build`", "")
    before_db: float | None = about("SQNR of the worst output of the best build so far", None)
    after_db: float | None = about("SQNR of the worst output with the repair", None)
    kept: bool = False
    holds: bool = about("the gate holds with it", False)
    note: str = about("why it could not be tried", "")
    skipped: bool = about("it was not tried: there was no time, or the user chose otherwise", False)
    tensors: tuple[str, ...] = about("the tensors that it concerns, where it concerns some alone", ())
    activation_bytes: int | None = about("by how many bytes these tensors grow together", None)
    file_bytes: int | None = about("by how many bytes the model's file grows", None)

    @property
    def sentence(self) -> str:
        """What the repair came to, for people."""
        options = self.options
        if len(self.tensors) > MOST_NAMED:
            first = ",".join(self.tensors[:MOST_NAMED])
            options = options.replace(",".join(self.tensors), f"{first},... all {len(self.tensors)} are in report.json")
        text = f"repair {self.repair} ({options})" if options else f"repair {self.repair}"
        if self.skipped:
            return f"{text}: not tried: {self.note}"
        if self.after_db is None or self.before_db is None:
            return f"{text}: not possible: {self.note}"
        gain = f"{text}: {self.before_db:.1f} to {self.after_db:.1f} dB"
        if self.tensors:
            count = f"{len(self.tensors)} tensor{'' if len(self.tensors) == 1 else 's'}"
            gain += f", {count} with {self.activation_bytes or 0:,} bytes more, {self.file_bytes or 0:+,} bytes of file"
        if self.holds:
            return f"{gain}; the gate holds"
        return f"{gain}; kept, the gate does not hold yet" if self.kept else f"{gain}; not kept"
