"""EcoTaxa: a zip of images and a table that its importer accepts."""

import zipfile
from dataclasses import replace
from pathlib import Path

from support.exports import PLAIN, a_run, content, rows_in_zip

from sortal.exchange.ecotaxa import ECOTAXA_TABLE, MOST_OWN_TEXTS
from sortal.exchange.export import export
from sortal.images.columns import Columns
from sortal.runs.run import Run
from sortal.system.progress import Runtime


def with_columns(run: Run, **columns: list[str]) -> Run:
    return replace(run, assignments=replace(run.assignments, columns=Columns.infer([*columns], columns.values())))


def test_the_table_says_what_and_where_each_object_is(tmp_path: Path) -> None:
    run = with_columns(
        a_run(tmp_path, [*PLAIN, ("e.png", "cat", "other")]),
        lat=["-5.25"] * 6,
        timestamp=["2024-05-01T23:30:00-01:00"] * 6,
        station=["A", "B", "A", "A", "A", "A"],
        camera=["", *["Zooscan"] * 5],
        Area_px=["1", "2", "3", "4", "5", "6.5"],
        note=["tab\there", "=1+1", "two\nlines", '"é" it is', '"', "z"],
        annotation_status=["mine"] * 6,
    )
    export(run, "ecotaxa", tmp_path / "out.zip")
    rows = rows_in_zip(tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert [archive.read(row["img_file_name"]) for row in rows] == [*map(content, run.paths())]
        assert archive.testzip() is None
    assert len({row["object_id"] for row in rows}) == 6
    first, second, third, fourth, fifth, last = rows
    said = [(row["object_annotation_category"], row["object_annotation_status"]) for row in rows]
    assert said == [("cat", "validated"), *[("cat", "predicted")] * 2, *[("new 1", "predicted")] * 2, ("", "")]
    assert (last["object_sortal_category"], last["object_sortal_status"]) == ("cat", "other")
    assert (first["object_lat"], first["object_date"], first["object_time"]) == ("-5.25", "20240502", "003000")
    assert [row["sample_id"] for row in rows[:2]] == ["A", "B"]
    assert (first["object_note"], second["object_note"], third["object_note"]) == ("tab here", "'=1+1", "two lines")
    assert (fourth["object_note"], fifth["object_note"]) == ('"é" it is', '"'), "read with quotes, as EcoTaxa does"
    assert [row["acq_id"] for row in rows[:3]] == ["", "B / Zooscan", "A / Zooscan"], "each of one sample only"
    assert (last["object_area_px"], last["object_own_annotation_status_2"]) == ("6.5", "mine")
    assert "object_lon" not in first


def test_columns_named_like_those_of_the_format_get_other_names(tmp_path: Path) -> None:
    run = with_columns(a_run(tmp_path, PLAIN), id=[*"abcde"], date=["spring"] * 5, lat=["north"] * 5)
    export(run, "ecotaxa", tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        header = archive.read(ECOTAXA_TABLE).decode().splitlines()[0].split("\t")
    assert len({*header}) == len(header)
    assert {"object_own_id_2", "object_own_date_2", "object_own_lat_2"} <= {*header}
    assert not {"object_date", "object_lat"} & {*header}, "which EcoTaxa would read as a date and a latitude"


def test_texts_for_which_a_project_has_no_room_are_left_out_with_a_note(tmp_path: Path) -> None:
    texts = {f"c{number}": [f"{number}{row} x" for row in range(5)] for number in range(MOST_OWN_TEXTS + 1)}
    notes: list[str] = []
    run = with_columns(a_run(tmp_path, PLAIN), **texts)
    export(run, "ecotaxa", tmp_path / "out.zip", runtime=Runtime(note=notes.append))
    assert f"object_c{MOST_OWN_TEXTS}" not in rows_in_zip(tmp_path / "out.zip")[0]
    assert f"left out: c{MOST_OWN_TEXTS}." in notes[0]
