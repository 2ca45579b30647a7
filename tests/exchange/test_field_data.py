"""Where and when images were taken, by columns of any spelling."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from sortal.errors import InputError
from sortal.exchange.field_data import FieldData, check_known, field_data, lacking
from sortal.images.columns import NO_COLUMNS, Columns


def test_columns_are_known_by_usual_names_and_must_have_the_right_type() -> None:
    columns = Columns.infer(
        ["Deployment_ID", "LAT", "Longitude", "time", "exif_time", "Camera", "depth", "note"],
        [
            *zip(
                ["A", "52.5", "-13", "at noon", "2024:05:01 10:00:00", "R", "5", ""],
                ["-", "91", *[""] * 6],
                strict=True,
            )
        ],
    )
    found, used = field_data(columns, 2)
    noon = datetime(2024, 5, 1, 10, tzinfo=UTC)
    assert found == [FieldData(noon, 52.5, -13.0, "A", "R", 5.0), FieldData(None, None, None, "", "", None)]
    assert {*used} == {"Deployment_ID", "LAT", "Longitude", "exif_time", "Camera", "depth"}, "a text is no time"
    assert field_data(NO_COLUMNS, 1) == ([FieldData(None, None, None, "", "", None)], ())


def test_a_time_keeps_its_zone() -> None:
    (found,), _ = field_data(Columns.infer(["timestamp"], [["2024-05-01T10:00:00.5+02:00"]]), 1)
    assert found.time == datetime(2024, 5, 1, 10, tzinfo=timezone(timedelta(hours=2)))


def test_what_is_missing_is_named_with_the_images() -> None:
    check_known({"time": [True], "latitude": [True]}, ["a.jpg"], "camtrap-dp")
    with pytest.raises(InputError) as caught:
        check_known({"time": [True, False], "latitude": [False, False]}, ["a.jpg", "b.jpg"], "camtrap-dp")
    assert str(caught.value) == (
        "The format camtrap-dp needs for every image: its time, which 1 image of 2 lacks: 'b.jpg'; its "
        "latitude, which 2 images of 2 lack: 'a.jpg', 'b.jpg'. Sort the images again with sortal discover RUN "
        "--exif, if their EXIF data has it, or with a table that has the columns: time (or timestamp, datetime, "
        "datetimeoriginal, …), latitude (or decimallatitude, lat, exiflatitude, …)."
    )


def test_what_an_export_will_lack_is_known_from_columns_that_say_something_of_where_or_when() -> None:
    assert lacking(NO_COLUMNS, 2) == ""
    for name in ("note", "location", "depth"):
        assert lacking(Columns.infer([name], [["1", "2"]]), 2) == "", "no images of camera traps"
    time, site = ["2024-05-01T10:00:00", ""], ["A", "A"]
    said = lacking(Columns.infer(["timestamp", "site", "lat"], [time, site, ["52.5", ""]]), 2)
    assert "would lack: time of 1 image, longitude of 2 images." in said, "a deployment has one position"
    whole = Columns.infer(["timestamp", "lat", "lon"], [[time[0]] * 2, ["52.5"] * 2, ["13"] * 2])
    assert lacking(whole, 2) == ""
