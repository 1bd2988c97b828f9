"""Writes letter.txt: the figures of the overview and the number of price alerts."""

import csv
import os
import pathlib


def rows(variable):
    for file in sorted(pathlib.Path(os.environ[variable]).rglob("*.csv")):
        with file.open() as text:
            yield from csv.DictReader(text)


lines = [f"{row['figure']}: {float(row['value']):,.2f}" for row in rows("SERVO_INPUT_REPORT_OVERVIEW")]
lines.append(f"price alerts: {len(list(rows('SERVO_INPUT_REPORT_PRICE_ALERTS')))}")
text = "\n".join(lines) + "\n"
pathlib.Path(os.environ["SERVO_OUTPUT"], "letter.txt").write_text(text)
print(text, end="")
