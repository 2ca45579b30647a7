"""A folder for the Hugging Face hub: the model that sorted a run, without its images, and a card."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sortal import __version__
from sortal.config import CONVNET, VECTORS, is_reference
from sortal.errors import InputError
from sortal.exchange.card import RunCard, accuracies, card_of, noun_of
from sortal.exchange.format import LeftOut, Request, write_json
from sortal.exchange.naming import last_part, shared_text
from sortal.images.columns import NO_COLUMNS
from sortal.images.exported import utf8
from sortal.runs import arrays
from sortal.runs.facts import RunFacts, Spec
from sortal.runs.reference import REFERENCE, reference_of
from sortal.runs.run import MODEL, Run
from sortal.runs.storage import write_run
from sortal.system import cache
from sortal.system.files import write_atomically
from sortal.system.json_records import read_record
from sortal.system.open_folder import own_folder
from sortal.system.regular_files import read_json, read_regular

IMAGE_TASK, VECTOR_TASK = "image-classification", "tabular-classification"  # as the hub calls them
RESAMPLE_NUMBERS = {"bilinear": 2, "bicubic": 3}  # of Pillow
HUB_README = """---
{metadata}
---

# {title}

This model sorts {noun}s into {count} categories. Of these, {known} had labels, and {new} were found in unlabelled
{noun}s by Sortal (`pip install sortal`). It gives each {noun} a category, a confidence, and a status: known, new,
unsure, or other (fits no category).

## Use

```python
import sortal

model = sortal.load("path/of/this/folder")  # huggingface_hub.snapshot_download(..., local_dir="path/of/this/folder")
model.predict({call}).to_pandas()
```

or `sortal predict path/of/this/folder {words} --csv table.csv`.

{facts}
## Limits

{limits}

## Files

`{model}.safetensors` and `{model}.json` are the {network}, `centres.npy` and `head.npy` (if there is one) what sorts
its output, `confidence.json` the calibration, `categories.csv` the names, `reference.npy` its output for the {noun}s
that the model was made of, by which it knows what is unusual. No image is in this folder, and no name of one.
"""


def write(request: Request) -> LeftOut:
    """Write the run without its images, its network, how images are prepared, and the card."""
    run, out = request.run, request.out
    own_folder(run.folder)  # in which links are not followed
    if is_reference(run.facts.backbone.name):
        raise InputError(
            f"The backbone of this run, {last_part(run.facts.backbone.name)}, is code of your own, which no model on "
            "the hub may need. Share the run and the code instead."
        )
    for name in (f"{MODEL}.json", f"{MODEL}.safetensors"):
        if not (run.folder / name).is_file():
            raise InputError(f"The run in {str(run.folder)!r} has no {name}, so there is no model to export.")
    reference = reference_of(run)
    write_run(handed_over(replace(run, folder=out)), {})
    write_atomically(out / REFERENCE, b"".join(arrays.npy_parts(np.asarray(reference, dtype=np.float32))))
    _write_network(run.folder, out)
    write_json(out / "config.json", timm_config(run.facts.backbone))
    if run.facts.features is None:
        write_json(out / "preprocessor_config.json", preprocessing(run.facts.backbone))
    write_atomically(out / "README.md", utf8(_readme(run, card_of(run))).encode())
    request.runtime.progress("Exporting", len(request.rows), len(request.rows))
    return LeftOut()


def _write_network(folder: Path, out: Path) -> None:
    """Copy the network of a run: the one that its description is of, and no file elsewhere that a link leads to."""
    described, weights = f"{MODEL}.json", f"{MODEL}.safetensors"
    try:
        about, content = read_json(folder / described), read_regular(folder / weights)
        name, digest = (read_record(str, about[key], key) for key in ("name", "sha256"))
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"{weights} does not match the digest in {described}")
    except (OSError, ValueError, LookupError, TypeError) as error:
        problem = f"{described} has no {error}" if isinstance(error, KeyError) else error
        raise InputError(f"The model of the run in {str(folder)!r} is damaged: {problem}.") from error
    write_atomically(out / weights, content)
    write_json(out / described, {**about, "name": last_part(name)})


def handed_over(run: Run) -> Run:
    """Return a run of the same categories without its images, and without what says where they were."""
    empty = run.part(np.zeros(0, dtype=np.int64))
    return replace(
        empty,
        facts=_shared(run.facts, cache.hashed(empty.features)),
        assignments=replace(empty.assignments, columns=NO_COLUMNS),
        categories=tuple(replace(each, typical=()) for each in empty.categories),
        quarantine=(),
        candidates=(),
        rejected=frozenset(),
        decisions=0,
    )


def _shared(facts: RunFacts, features: str) -> RunFacts:
    weights, source = facts.settings.weights, facts.method_source
    return replace(
        facts,
        images=tuple(replace(each, folder=None, paths={}) for each in facts.images),
        folders=(),
        features=facts.features and "",
        labels=None,
        settings=replace(
            facts.settings,
            weights=weights and last_part(weights),
            backbone=last_part(facts.settings.backbone),
            method=last_part(facts.settings.method),
            set=tuple(map(_shared_setting, facts.settings.set)),
        ),
        backbone=replace(facts.backbone, name=last_part(facts.backbone.name)),
        command="",  # it names files, as notes do
        weights=last_part(shared_text(facts.weights, facts, weights or "")),
        updates=tuple(replace(each, folder=last_part(each.folder), features=None) for each in facts.updates),
        notes=(),
        method_source=source and replace(source, code=last_part(source.code)),
        hashes=replace(facts.hashes, features=features),
    )


def _shared_setting(text: str) -> str:
    """Return a setting, name=value, with the last part of a path."""
    name, equals, value = text.partition("=")
    return f"{name}{equals}{last_part(value)}"


def preprocessing(spec: Spec) -> dict[str, Any]:
    """Describe how images are prepared as image processors of transformers do."""
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": spec.shorter_side},
        "resample": RESAMPLE_NUMBERS[spec.interpolation],
        "do_center_crop": True,
        "crop_size": {"height": spec.image_size, "width": spec.image_size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": spec.mean,
        "image_std": spec.std,
    }


def timm_config(spec: Spec) -> dict[str, Any]:
    """Describe the network as timm does on the hub, so that it can be a backbone, too; one of Sortal's by its spec."""
    if spec.name in (CONVNET, VECTORS) or spec.architecture or ":" in spec.name:
        return {"library": "sortal", "version": __version__, "backbone": spec.described()}
    size = (3, spec.image_size, spec.image_size)
    return {
        "architecture": spec.name.partition(".")[0],
        "num_classes": 0,
        "num_features": spec.width,
        "pretrained_cfg": {
            "input_size": size,
            "interpolation": spec.interpolation,
            "crop_pct": spec.image_size / spec.shorter_side,
            "crop_mode": "center",
            "mean": spec.mean,
            "std": spec.std,
            "num_classes": 0,
        },
        **({"model_args": {"img_size": spec.image_size}} if "vit" in spec.name else {}),
    }


def _readme(run: Run, card: RunCard) -> str:
    folder = run.folder.resolve().name
    known, of_vectors = sum(each.kind == "known" for each in run.categories), run.facts.features is not None
    tables = (
        f"## {title}\n\n| | |\n|---|---|\n" + "".join(f"| {_cell(name)} | {_cell(value)} |\n" for name, value in rows)
        for title, rows in card.facts.items()
    )
    return HUB_README.format(
        metadata=_metadata(run, folder),
        title=_cell(folder),
        count=f"{len(run.categories):,}",
        known=f"{known:,}",
        new=f"{len(run.categories) - known:,}",
        facts="\n".join(tables),
        limits="\n".join(f"- {_cell(each)}" for each in card.limits),
        model=MODEL,
        noun=noun_of(run),
        call='features="more.npz"' if of_vectors else '"new_photos"',
        words="--features more.npz" if of_vectors else "new_photos",
        network="small network on the vectors" if of_vectors else "network",
    )


def _metadata(run: Run, folder: str) -> str:
    """Return what the hub reads; JSON is YAML, and quotes whatever names contain."""
    task = IMAGE_TASK if run.facts.features is None else VECTOR_TASK
    values: dict[str, Any] = {
        "library_name": "sortal",
        "pipeline_tag": task,
        "license": "unknown",
        "tags": ["sortal", "category-discovery", task],
    }
    if run.metrics is not None:
        measured = [
            {"type": "accuracy", "name": f"Accuracy, {name}", "value": round(value, 4)}
            for name, value in accuracies(run.metrics).items()
            if value is not None
        ]
        result = {
            "task": {"type": task},
            "dataset": {
                "type": "imagefolder" if task == IMAGE_TASK else "vectors",
                "name": f"the unlabelled {noun_of(run)}s that were sorted",
            },
            "metrics": measured,
        }
        values["model-index"] = [{"name": folder, "results": [result]}]
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in values.items())


def _cell(text: str) -> str:
    """Return a text on one line, without what Markdown and HTML take for more than text."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{each}" if each in "\\`*_[]|#~$" else each for each in plain)
