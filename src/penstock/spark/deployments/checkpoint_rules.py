"""Decides what a new version does to the checkpoints of its flows. Pure.

    the flow was removed                      the checkpoint stays where it is
    an earlier version had the flow           as if that version ran now: its checkpoint is there
    the flow is new                           it begins without a checkpoint, unless its storage has
                                              one of this name that the catalog knows nothing of
    nothing changed                           kept
    a materialized view                       has no checkpoint: it is computed in every round
    changed, stateless, with the same sources kept
    the target or the database changed        not kept: Spark looks for it in another place
    the sources changed                       not kept: the offsets are those of other sources
    changed, and it keeps state               not kept: the state may not fit

A flow whose checkpoint is not kept needs a decision of the user: begin again without it, or keep
it because the change does not matter to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from penstock.spark.deployments.flow_fingerprints import (
    Fingerprint,
    parse_fingerprint,
    quarantine_flow,
)
from penstock.spark.deployments.model import Version
from penstock.spark.pipelines.errors import PipelineError

Outcome = Literal["new", "removed", "unchanged", "kept", "recomputed", "not kept", "moved"]


@dataclass(frozen=True, slots=True)
class FlowChange:
    """What a new version does to a flow."""

    flow: str
    outcome: Outcome
    reason: str


class Former(NamedTuple):
    """A flow that the running version does not have, in the last version that had it."""

    version: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to each flow, with the decisions of the user."""

    changes: list[FlowChange]
    reset: list[str]
    """The flows that begin again."""
    keep: list[str] = field(default_factory=list)
    """The flows that keep their checkpoints, because the user says so."""
    pending: list[str] = field(default_factory=list)
    """Flows that were to begin again earlier, which is not done yet."""

    def texts(self) -> list[str]:
        """Returns a line for each flow."""
        return [f"{each.flow}: {self._text(each)}" for each in self.changes]

    def _text(self, change: FlowChange) -> str:
        if change.flow in self.reset:
            return f"restarts without its checkpoint ({change.reason})"
        if change.flow in self.pending and change.outcome != "removed":
            return (
                "restarts without its checkpoint, because of an earlier --reset that is still "
                f"pending; to keep the checkpoint: --keep-checkpoint {change.flow}"
            )
        match change.outcome:
            case "new" | "removed":
                return f"{change.outcome}; {change.reason}"
            case "recomputed":
                return change.reason
            case "not kept":
                return f"keeps its checkpoint, as --keep-checkpoint asks ({change.reason})"
            case _:
                return f"keeps its checkpoint ({change.reason})"


def former_flows(versions: Iterable[Version], running: int) -> dict[str, Former]:
    """Returns the flows of all versions but the running one."""
    found: dict[str, Former] = {}
    for version in sorted(versions, key=lambda each: -each.number):
        if version.number != running:
            for flow, fingerprint in version.flows.items():
                found.setdefault(flow, Former(version.number, fingerprint))
    return found


def compare(
    old: Mapping[str, str], new: Mapping[str, str], former: Mapping[str, Former] | None = None
) -> list[FlowChange]:
    """Returns what happens to each flow, by name. `old` and `new` map flows to fingerprints."""
    changes = []
    for flow in sorted({*old, *new}):
        if flow in old:
            changes.append(_compared(flow, old[flow], new.get(flow)))
        else:
            known = (each for each in old if each in new and quarantine_flow(each, new) == flow)
            accepts = next(known, "")
            changes.append(_added(flow, (former or {}).get(flow), new[flow], accepts))
    return changes


def decide(
    changes: Sequence[FlowChange],
    reset: Collection[str],
    keep: Collection[str],
    pending: Collection[str] = (),
) -> Decision:
    """Applies the decisions of the user, or raises `PipelineError` if some are missing. `pending`
    are flows that were to begin again earlier, which is not done yet."""
    known = {each.flow: each for each in changes if each.outcome != "removed"}
    for option, flows in (("--reset", reset), ("--keep-checkpoint", keep)):
        for flow in flows:
            if flow not in known:
                raise PipelineError(
                    f"{option} {flow}: there is no such flow; the flows are "
                    f"{', '.join(known) or 'unknown'}"
                )
    if both := sorted(set(reset) & set(keep)):
        raise PipelineError(f"{both[0]} has both --reset and --keep-checkpoint: use one, not both")
    for flow in keep:
        if known[flow].outcome == "moved":
            raise PipelineError(
                f"the checkpoint of {flow} cannot be kept ({known[flow].reason}): "
                f"use --reset {flow}"
            )
    missing = [
        each
        for each in changes
        if each.outcome in ("not kept", "moved") and each.flow not in {*reset, *keep}
    ]
    if missing:
        raise PipelineError(_refusal(missing))
    left = sorted(set(pending) - set(keep) - set(reset))
    return Decision(list(changes), sorted(reset), sorted(keep), left)


def _refusal(missing: Sequence[FlowChange]) -> str:
    flows = "; ".join(f"{each.flow} ({each.reason})" for each in missing)
    first = missing[0].flow
    return (
        f"nothing was changed, because these flows cannot keep their checkpoints: {flows}. Choose "
        f"for each flow: --reset {first} (it restarts without its checkpoint) or "
        f"--keep-checkpoint {first} (you know that the checkpoint still fits)"
    )


def _added(flow: str, former: Former | None, after: str, accepts: str = "") -> FlowChange:
    """A flow that the running version does not have. Its storage may have a checkpoint of it: of an
    earlier version, of a deployment that was deleted, or of runs of the project. `accepts`: the
    running flow whose quarantined rows it gets."""
    found = parse_fingerprint(after)
    if found is not None and found.kind == "batch":
        return FlowChange(flow, "new", "it has no checkpoint: it is computed in every round")
    change = None if former is None else _compared(flow, former.fingerprint, after)
    if former is None or change is None or change.outcome in ("new", "moved"):
        if accepts:
            return FlowChange(
                flow,
                "new",
                f"it starts at the startingOffsets of its source, and not where {accepts} is: with "
                f"earliest, rows that {accepts} accepted before are there, too; with latest, rows "
                f"that arrive before it starts can be in neither of the two",
            )
        return FlowChange(
            flow,
            "new",
            "it starts without a checkpoint, unless its storage has one with this name: then it "
            "continues from there",
        )
    reason = f"version {former.version} had this flow, and its checkpoint was kept"
    if change.outcome in ("unchanged", "kept"):
        return FlowChange(flow, "kept", f"{reason}: it continues from there")
    return FlowChange(flow, change.outcome, f"{reason}, but {change.reason}")


def _compared(flow: str, before: str, after: str | None) -> FlowChange:
    if after is None:
        return FlowChange(flow, "removed", "its checkpoint and its table are kept")
    if before == after:
        return FlowChange(flow, "unchanged", "it did not change")
    old, new = parse_fingerprint(before), parse_fingerprint(after)
    if old is None or new is None:
        return FlowChange(flow, "not kept", "the two versions cannot be compared")
    return _changed(flow, old, new)


def _changed(flow: str, old: Fingerprint, new: Fingerprint) -> FlowChange:
    if new.kind == "batch":
        return FlowChange(flow, "recomputed", "has no checkpoint: it is computed in every round")
    if old.kind == "batch":
        return FlowChange(flow, "new", "it was not a stream before")
    if old.place != new.place:
        return FlowChange(flow, "moved", "its target or its database changed")
    if old.sources != new.sources:
        return FlowChange(flow, "not kept", "its sources changed")
    if old.stateful or new.stateful:
        return FlowChange(flow, "not kept", "it keeps state and its definition changed")
    return FlowChange(flow, "kept", "it changed, but has the same sources and keeps no state")
