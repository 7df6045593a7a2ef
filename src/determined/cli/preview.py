"""`det preview-search`: what a search would do, worked out here, before anything is spent."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated

import typer

from determined.cli import render, session, terms
from determined.cli.output import formatted


@formatted
def preview_search(
    config: Annotated[pathlib.Path, typer.Argument(help="The experiment's configuration, a YAML file; - for stdin.")],
    overrides: terms.Overrides = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed; default: the configuration's, else 0.", min=0)
    ] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", help="Slots of the cluster; default: as many as it wants.", min=1)
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds-per-unit", help="Seconds for one batch or epoch: gives hours.", min=0.0)
    ] = None,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show what a search would do: how many trials train for how long, and what that costs."""
    from determined import config as configs
    from determined.cli import submit
    from determined.search import simulate

    wanted = submit.Submission(config, overrides=tuple(overrides or ()))
    found = configs.load(submit.read(config), overrides=wanted.overrides, name_hint=wanted.name_hint, file=wanted.file)
    if seed is None:
        seed = found.reproducibility.experiment_seed or 0
    preview = simulate.simulate(found, seed, slots=slots, seconds_per_unit=seconds)
    if form not in (render.Format.TABLE, render.Format.CSV):
        render.document(dataclasses.asdict(preview), form)
        return
    rows = [
        {"trials": row.trials, "train_to": "their own end" if row.target is None else f"{row.target:g} {row.unit}"}
        for row in preview.rows
    ]
    render.listing(rows, ["trials", "train_to"], form)
    if form is render.Format.CSV:
        return
    unit = preview.rows[0].unit if preview.rows else ""
    facts = [("trials", str(preview.trials))]
    if preview.total:
        facts.append(("all together", f"{preview.total:g} {unit}"))
        facts.append(("from start to end", f"{preview.elapsed:g} {unit}"))
    if preview.slot_hours is not None and preview.hours is not None:
        facts.append(("slot-hours", f"{preview.slot_hours:.3g}"))
        facts.append(("hours", f"{preview.hours:.3g}"))
    print()
    render.facts(facts)
    if preview.examples:
        print("\nthe first trials")
        render.listing([{"hyperparameters": each} for each in preview.examples], ["hyperparameters"], form)
    for notice in preview.notices:
        session.tell(f"note: {notice}")
