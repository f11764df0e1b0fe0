"""Running a study at its small size, and looking at what it writes."""

import csv
import json

from widelimit.app.studies import Size


def run_and_check(study, folder):
    """The numbers of a study that wrote data, figures and sentences about them."""
    steps = []
    result = study.run(Size.SMALL, folder, lambda done, total: steps.append((done, total)))
    done, total = zip(*steps, strict=True)
    assert done == tuple(range(1, total[0] + 1))
    (numbers,) = folder.glob("*.json")
    assert json.loads(numbers.read_text()).keys() == result.keys()
    for name in study.captions:
        assert (folder / f"{name}.png").stat().st_size > 10_000
    for table in folder.glob("*.csv"):
        assert list(csv.DictReader(table.read_text().splitlines()))
    said = study.conclude(result)
    assert said
    assert all(sentence.endswith(".") for sentence in said)
    return result
