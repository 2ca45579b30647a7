"""Camtrap DP 1.0, the exchange format of camera traps: deployments, media and observations as a data package."""

import mimetypes
from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import fmean
from typing import Any, NamedTuple

from sortal import __version__
from sortal.errors import InputError
from sortal.exchange.field_data import FieldData, check_known, field_data, required
from sortal.exchange.format import LeftOut, Request, write_json
from sortal.exchange.image_formats import UniqueNames, place_images
from sortal.images.columns import NEAR_DUPLICATES, as_text, is_missing
from sortal.images.exported import ExportedRow, utf8
from sortal.images.review_states import SEEN_WORDS
from sortal.runs.categories import is_generated
from sortal.runs.run import OTHER, UNSURE
from sortal.system.csv_tables import table
from sortal.system.files import write_atomically
from sortal.system.gathering import gathered
from sortal.system.text import numbered

CAMTRAP_FORMAT, MEDIA_FOLDER = "camtrap-dp", "media"
PROFILE = "https://raw.githubusercontent.com/tdwg/camtrap-dp/1.0/{}.json"
# Categories that are no animals, by what people call them.
NO_ANIMALS = {
    **dict.fromkeys(("blank", "empty", "nothing", "none"), "blank"),
    **dict.fromkeys(("human", "humans", "person", "people", "homo sapiens"), "human"),
    **dict.fromkeys(("vehicle", "vehicles", "car", "cars"), "vehicle"),
}
# Every field of each table, in the order of its schema; readers want all of them.
CAMTRAP_FIELDS = {
    "deployments": "deploymentID locationID locationName latitude longitude coordinateUncertainty deploymentStart "
    "deploymentEnd setupBy cameraID cameraModel cameraDelay cameraHeight cameraDepth cameraTilt cameraHeading "
    "detectionDistance timestampIssues baitUse featureType habitat deploymentGroups deploymentTags deploymentComments",
    "media": "mediaID deploymentID captureMethod timestamp filePath filePublic fileName fileMediatype exifData "
    "favorite mediaComments",
    "observations": "observationID deploymentID mediaID eventID eventStart eventEnd observationLevel observationType "
    "cameraSetupType scientificName count lifeStage sex behavior individualID individualPositionRadius "
    "individualPositionAngle individualSpeed bboxX bboxY bboxWidth bboxHeight classificationMethod classifiedBy "
    "classificationTimestamp classificationProbability observationTags observationComments",
}
FILL_IN = (
    "Before you publish the package, fill in what no run knows in datapackage.json: contributors, licenses, and the "
    "project with its samplingDesign and captureMethod, of which opportunistic and activityDetection are assumed."
)


class Sighting(NamedTuple):
    """An image at its place in the package."""

    row: ExportedRow
    path: str
    deployment: str
    time: datetime
    data: FieldData


def write(request: Request) -> LeftOut:
    data, used = field_data(request.run.assignments.columns, len(request.rows))
    check_known(required(data), [row.file_name for row in request.rows], CAMTRAP_FORMAT)
    names = UniqueNames()
    there, left = place_images(request, lambda row: names.file(row.file_name.replace("..", "__")), MEDIA_FOLDER)
    number = {id(row): at for at, row in enumerate(request.rows)}
    sightings = []
    for row, path in there:
        own = data[number[id(row)]]
        assert own.time is not None
        sightings.append(Sighting(row, f"{MEDIA_FOLDER}/{utf8(path)}", _place(own), own.time, own))
    if not sightings:
        raise InputError("No image of the run is where it was when it was sorted, so there is nothing to export.")
    all_data = gathered((_place(each), each) for each in data)  # also of images that are gone
    deployments = gathered((each.deployment, each) for each in sightings)
    tables = {
        "deployments": [_deployment(name, own, all_data[name]) for name, own in deployments.items()],
        "media": [*map(_medium, sightings)],
        "observations": _observations(request, sightings, used),
    }
    for name, records in tables.items():
        columns = [(field, [each.get(field) for each in records]) for field in CAMTRAP_FIELDS[name].split()]
        write_atomically(request.out / f"{name}.csv", table(columns))
    write_json(request.out / "datapackage.json", _package(request, tables))
    request.runtime.note(FILL_IN)
    return left


def _place(data: FieldData) -> str:
    """Return the name of the deployment of an image, or else its position."""
    return utf8(data.deployment) or f"{data.latitude:.6f} {data.longitude:.6f}"


def _deployment(name: str, own: Sequence[Sighting], data: Sequence[FieldData]) -> dict[str, Any]:
    """Describe a deployment by its images: the first and the last of their times, the mean of all known positions."""
    times = [each.time for each in own]
    return {
        "deploymentID": name,
        "locationName": own[0].data.deployment and name,
        "latitude": round(fmean(each.latitude for each in data if each.latitude is not None), 6),
        "longitude": round(fmean(each.longitude for each in data if each.longitude is not None), 6),
        "deploymentStart": min(times).isoformat(),
        "deploymentEnd": max(times).isoformat(),
        "cameraModel": utf8(next((each.data.camera for each in own if each.data.camera), "")),
    }


def _medium(each: Sighting) -> dict[str, Any]:
    kind = mimetypes.guess_type(each.path)[0] or ""
    return {
        "mediaID": each.path,
        "deploymentID": each.deployment,
        "timestamp": each.time.isoformat(),
        "filePath": each.path,
        "filePublic": "false",
        "fileName": utf8(each.row.file_name),
        "fileMediatype": kind if kind.startswith("image/") else "image/unknown",
    }


def _observations(request: Request, sightings: Sequence[Sighting], used: Sequence[str]) -> list[dict[str, Any]]:
    """Describe each image by its category."""
    events = _events(sightings)
    finished = datetime.fromisoformat(request.run.facts.finished or "1970-01-01").astimezone().isoformat("T", "seconds")
    machine = {
        "classificationMethod": "machine",
        "classifiedBy": f"Sortal {request.run.facts.versions.get('sortal', __version__)}",
        "classificationTimestamp": finished,
    }
    found = []
    for each in sightings:
        row, (event, start, end) = each.row, events[_event_of(each)]
        type_, name = _seen(row)
        decided = bool(row.label) or row.reviewed in SEEN_WORDS
        by = dict.fromkeys(machine, "") | {"classificationMethod": "human"} if decided else machine
        found.append(
            {
                "observationID": f"{each.path}#1",
                "deploymentID": each.deployment,
                "mediaID": each.path,
                "eventID": event,
                "eventStart": start.isoformat(),
                "eventEnd": end.isoformat(),
                "observationLevel": "media",
                "observationType": type_,
                "scientificName": name,
                **by,
                "classificationProbability": None if decided or row.calibrated == "no" else row.confidence,
                "observationTags": _tags(row, used),
            }
        )
    return found


def _tags(row: ExportedRow, used: Sequence[str]) -> str:
    """Return the status and category of an image, and what no field has of its own columns, as names and values."""
    own = {name: cell for name, cell in row.own.items() if name not in used and not is_missing(as_text(cell))}
    said = {"status": row.status, "category": row.sorted_as, **own}
    return " | ".join(
        " ".join(f"{name}:{utf8(as_text(cell))}".replace("|", "/").split()) for name, cell in said.items()
    )


def _event_of(each: Sighting) -> tuple[str, str, str]:
    """Return the deployment and group of an image; one without a group is an event of its own."""
    return each.deployment, each.row.group, "" if each.row.group else each.path


def _events(sightings: Sequence[Sighting]) -> dict[tuple[str, str, str], tuple[str, datetime, datetime]]:
    """Return the name of each event, its start and its end; one whose group has no given name is called by its time."""
    found, taken = dict[tuple[str, str, str], tuple[str, datetime, datetime]](), set[str]()
    for event, times in gathered((_event_of(each), each.time) for each in sightings).items():
        deployment, group, _ = event
        named = group and not group.startswith(NEAR_DUPLICATES)
        name = numbered(utf8(group) if named else f"{deployment} {min(times).isoformat()}", taken)
        taken.add(name)
        found[event] = name, min(times), max(times)
    return found


def _seen(row: ExportedRow) -> tuple[str, str]:
    """Return the type of an observation, and the name of what was seen: none where the run cannot say."""
    if not row.category:
        return "unclassified", ""
    if row.status in (UNSURE, OTHER) or is_generated(row.category):
        return "unknown", ""
    type_ = NO_ANIMALS.get(row.category.casefold(), "animal")
    return type_, utf8(row.category) if type_ == "animal" else ""


def _package(request: Request, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    deployments, facts = tables["deployments"], request.run.facts
    names = sorted({each["scientificName"] for each in tables["observations"]} - {""})
    title = f"Camera trap images sorted by Sortal: {request.run.folder.name}"
    resources = [
        {
            "name": name,
            "path": f"{name}.csv",
            "profile": "tabular-data-resource",
            "format": "csv",
            "mediatype": "text/csv",
            "encoding": "utf-8",
            "schema": PROFILE.format(f"{name}-table-schema"),
        }
        for name in tables
    ]
    west, south = (min(each[side] for each in deployments) for side in ("longitude", "latitude"))
    east, north = (max(each[side] for each in deployments) for side in ("longitude", "latitude"))
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {
        "profile": PROFILE.format("camtrap-dp-profile"),
        "created": facts.finished or f"{datetime.now().astimezone():%Y-%m-%dT%H:%M:%S%z}",
        "title": title,
        "contributors": [{"title": "Sortal, which sorted the images", "role": "contributor"}],
        "project": {
            "title": title,
            "samplingDesign": "opportunistic",
            "captureMethod": ["activityDetection"],
            "individualAnimals": False,
            "observationLevel": ["media"],
        },
        "spatial": {"type": "Polygon", "coordinates": [ring]},
        "temporal": {
            "start": min(each["deploymentStart"] for each in deployments)[:10],
            "end": max(each["deploymentEnd"] for each in deployments)[:10],
        },
        "taxonomic": [{"scientificName": name} for name in names],
        "resources": resources,
    }
