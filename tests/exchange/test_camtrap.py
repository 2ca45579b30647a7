"""Camtrap DP: a package that keeps the rules of its profile, and says of each image what the run says."""

import csv
import json
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.exports import HOSTILE, UNSURE, Image_, a_run, content, files_below, not_calibrated

from sortal.errors import InputError
from sortal.exchange.camtrap import CAMTRAP_FIELDS
from sortal.exchange.export import export
from sortal.images.columns import Columns
from sortal.runs.run import Run
from sortal.system.csv_tables import unescape_cell
from sortal.system.progress import Runtime

# Of the profile 1.0 and its table schemas: fields that must not be empty, and what some may hold.
REQUIRED = {
    "deployments": "deploymentID latitude longitude deploymentStart deploymentEnd",
    "media": "mediaID deploymentID timestamp filePath filePublic fileMediatype",
    "observations": "observationID deploymentID eventStart eventEnd observationLevel observationType",
}
ALLOWED = {
    "observationType": {"animal", "human", "vehicle", "blank", "unknown", "unclassified"},
    "observationLevel": {"media", "event"},
    "classificationMethod": {"human", "machine"},
    "filePublic": {"true", "false"},
}
PATH = re.compile(r"^(?=^[^./~])(^((?!\.{2}).)*$).*$")


def a_trap(folder: Path, images: list[Image_] = UNSURE, **columns: list[str]) -> Run:
    n = len(images)
    own: dict[str, list[str]] = {
        "timestamp": [f"2024-05-01T10:00:{row:02}" for row in range(n)],
        "latitude": ["52.5"] * n,
        "longitude": ["13.25"] * n,
        **columns,
    }
    run = a_run(folder, images)
    facts = replace(run.facts, finished="2024-06-01T10:00:00+00:00")
    found = Columns.infer([*own], own.values())
    return replace(run, facts=facts, assignments=replace(run.assignments, columns=found))


def package(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Return the tables of a package that keeps the rules of the profile."""
    about: dict[str, Any] = json.loads((folder / "datapackage.json").read_text())
    wanted = {"profile", "created", "contributors", "project", "spatial", "temporal", "taxonomic", "resources"}
    assert wanted <= about.keys()
    assert {"title", "samplingDesign", "captureMethod", "individualAnimals", "observationLevel"} <= {*about["project"]}
    assert datetime.fromisoformat(about["created"]).tzinfo
    tables = {}
    for resource in about["resources"]:
        name = resource["name"]
        assert resource["profile"] == "tabular-data-resource"
        assert resource["schema"].endswith(f"/1.0/{name}-table-schema.json")
        with (folder / resource["path"]).open(newline="", encoding="utf-8") as file:
            rows = [
                {key: unescape_cell(cell) for key, cell in row.items()} for row in csv.DictReader(file, strict=True)
            ]
        assert [*rows[0]] == CAMTRAP_FIELDS[name].split()
        for row in rows:
            assert all(row[field] for field in REQUIRED[name].split())
            assert all(row[field] in values for field, values in ALLOWED.items() if row.get(field))
            times = [row[field] for field in row if re.search("timestamp|Start|End", field) and row[field]]
            assert all(
                datetime.strptime(each, "%Y-%m-%dT%H:%M:%S%z") for each in times if each not in ("true", "false")
            )
        key = REQUIRED[name].split()[0]
        assert len({row[key] for row in rows}) == len(rows)
        tables[name] = rows
    assert [*tables] == ["deployments", "media", "observations"]
    places = {row["deploymentID"] for row in tables["deployments"]}
    assert {row["deploymentID"] for name in ("media", "observations") for row in tables[name]} == places
    assert {row["mediaID"] for row in tables["observations"]} == {row["mediaID"] for row in tables["media"]}
    assert all(PATH.match(row["filePath"]) and (folder / row["filePath"]).is_file() for row in tables["media"])
    names = {row["scientificName"] for row in tables["observations"]} - {""}
    assert {each["scientificName"] for each in about["taxonomic"]} == names
    return tables


def test_a_package_has_deployments_media_and_observations(tmp_path: Path) -> None:
    run = a_trap(tmp_path, site=[*"AABAAAA"], group=["g", "g", *[""] * 5], longitude=["13", "14", "-9", *[""] * 4])
    notes: list[str] = []
    export(run, "camtrap-dp", tmp_path / "out", runtime=Runtime(note=notes.append))
    tables = package(tmp_path / "out")
    first, other = tables["deployments"]
    assert (first["deploymentID"], first["latitude"], first["longitude"]) == ("A", "52.5", "13.5")
    assert (first["deploymentStart"], first["deploymentEnd"]) == (
        "2024-05-01T10:00:00+00:00", "2024-05-01T10:00:06+00:00"
    )  # fmt: skip
    assert other["longitude"] == "-9.0"
    seen = [
        (row["observationType"], row["scientificName"], row["classificationMethod"]) for row in tables["observations"]
    ]
    cat, unknown = ("animal", "cat", "machine"), ("unknown", "", "machine")
    assert seen == [("animal", "cat", "human"), cat, cat, *[unknown] * 4], "new 1 is no name, nor is unsure"
    one, two, *_ = tables["observations"]
    assert (two["eventID"], two["eventStart"], two["eventEnd"]) == ("g", one["eventStart"], "2024-05-01T10:00:01+00:00")
    assert one["classificationProbability"] == ""
    assert float(two["classificationProbability"]) == pytest.approx(run.assignments.confidence[1], abs=1e-6)
    assert content(tmp_path / "out" / tables["media"][0]["filePath"]) == content(run.paths()[0])
    assert "samplingDesign" in notes[0]


def test_every_event_has_a_name_of_its_own(tmp_path: Path) -> None:
    group = ["g", "g", "g", "near-duplicates 7", "near-duplicates 7", "", ""]
    times = [f"2024-05-01T10:00:0{second}" for second in (0, 1, 2, 3, 4, 5, 5)]
    export(a_trap(tmp_path, site=[*"AABAAAA"], group=group, timestamp=times), "camtrap-dp", tmp_path / "out")
    found = package(tmp_path / "out")["observations"]
    burst, single = "A 2024-05-01T10:00:03+00:00", "A 2024-05-01T10:00:05+00:00"
    assert [row["eventID"] for row in found] == ["g", "g", "g (2)", burst, burst, single, f"{single} (2)"]
    assert [row["eventEnd"][17:19] for row in found] == ["01", "01", "02", "04", "04", "05", "05"]


def test_own_columns_that_no_field_is_for_are_tags(tmp_path: Path) -> None:
    n = len(UNSURE)
    observers = ["Ann | Bob", "n/a", *["Cy"] * (n - 2)]
    own: dict[str, Any] = {"site": ["A"] * n, "observer": observers, "snow\tcm": ["12.5"] * n}
    export(a_trap(tmp_path, **own), "camtrap-dp", tmp_path / "out")
    first, second, *_ = (row["observationTags"] for row in package(tmp_path / "out")["observations"])
    assert first == "status:labelled | category:cat | observer:Ann / Bob | snow cm:12.5"
    assert second == "status:known | category:cat | snow cm:12.5"


def test_confidence_that_is_not_calibrated_is_no_probability(tmp_path: Path) -> None:
    run = a_trap(tmp_path)
    notes: list[str] = []
    export(not_calibrated(run), "camtrap-dp", tmp_path / "out", runtime=Runtime(note=notes.append))
    assert {row["classificationProbability"] for row in package(tmp_path / "out")["observations"]} == {""}
    assert "leaves it empty" in notes[-1]


def test_names_that_are_no_animals_or_no_paths_are_made_valid(tmp_path: Path) -> None:
    images = [("a..b.png", "Empty", "known"), ("b.png", "person", "known"), ("c.png", "car", "known")]
    export(a_trap(tmp_path, images), "camtrap-dp", tmp_path / "out")
    tables = package(tmp_path / "out")
    assert [row["observationType"] for row in tables["observations"]] == ["blank", "human", "vehicle"]
    assert tables["deployments"][0]["deploymentID"] == "52.500000 13.250000", "by its position"
    export(a_trap(tmp_path / "hostile", HOSTILE), "camtrap-dp", tmp_path / "hostile" / "out", how="copy")
    assert len(package(tmp_path / "hostile" / "out")["media"]) == len(HOSTILE)


@pytest.mark.parametrize("what", ["timestamp", "latitude", "longitude"])
def test_a_run_that_lacks_what_the_format_requires_is_refused(what: str, tmp_path: Path) -> None:
    run = a_trap(tmp_path, UNSURE, **{what: [""] * len(UNSURE)})
    with pytest.raises(InputError, match=rf"for every image: its {what.removesuffix('stamp')}, which 7 images of 7"):
        export(run, "camtrap-dp", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_that_are_gone_are_left_out(tmp_path: Path) -> None:
    run = a_trap(tmp_path)
    Path(run.paths()[1]).unlink()
    assert export(run, "camtrap-dp", tmp_path / "out").missing == ("b.png",)
    assert len(package(tmp_path / "out")["media"]) == 6
    assert not any("b.png" in name for name in files_below(tmp_path / "out"))
    for path in run.paths():
        Path(path).unlink(missing_ok=True)
    with pytest.raises(InputError, match="nothing to export"):
        export(run, "camtrap-dp", tmp_path / "none")


def test_a_deployment_keeps_the_position_of_an_image_that_is_gone(tmp_path: Path) -> None:
    n = len(UNSURE) - 1
    run = a_trap(tmp_path, site=["A"] * (n + 1), latitude=["52.5", *[""] * n], longitude=["13.25", *[""] * n])
    Path(run.paths()[0]).unlink()
    export(run, "camtrap-dp", tmp_path / "out")
    (only,) = package(tmp_path / "out")["deployments"]
    assert (only["latitude"], only["longitude"]) == ("52.5", "13.25")
    assert only["deploymentStart"] == "2024-05-01T10:00:01+00:00", "by the images that are there"
