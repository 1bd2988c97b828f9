"""Draws the weather of the cities as climate.svg, with the standard library only.

Each SERVO_INPUT_… names a folder with one data.csv. The files that the script writes to
SERVO_OUTPUT become the asset.
"""

import csv
import os
from datetime import date
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH = 1040
LEFT, RIGHT = 74, 32
TOP, PANEL, GAP = 118, 316, 26
TEMPERATURE, RAIN = 176, 62  # heights within a panel

INK, MUTED, GRID, PAPER = "#22303c", "#6b7a88", "#e3e8ec", "#fcfcfa"
BAND, LINE, WATER = "#f3c9a5", "#c8553d", "#3d7ea6"
COLD, WARM = (33, 102, 172), (178, 24, 43)
FONT = "font-family='Inter, Helvetica Neue, Helvetica, Arial, sans-serif'"
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


def read(variable):
    """Returns the rows of an input, which may have several files."""
    rows = []
    for path in sorted(Path(os.environ[variable]).glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            rows.extend(csv.DictReader(file))
    return rows


def month_of(row):
    day = date.fromisoformat(row["month"][:10])
    return day.year * 12 + day.month - 1


def name_of(month):
    return f"{MONTHS[month % 12]} {month // 12}"


class Axis:
    """Maps values from [low, high] to positions from start to end."""

    def __init__(self, low, high, start, end):
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value):
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def text(x, y, words, size=12, fill=MUTED, anchor="start", extra=""):
    return f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{fill}' text-anchor='{anchor}' {extra}>{escape(words)}</text>"


def line(x1, y1, x2, y2, stroke=GRID, extra=""):
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{stroke}' {extra}/>"


def rect(x, y, width, height, fill, title=""):
    tip = f"<title>{escape(title)}</title>" if title else ""
    return f"<rect x='{x:.2f}' y='{y:.2f}' width='{width:.2f}' height='{height:.2f}' fill='{fill}'>{tip}</rect>"


def points(pairs):
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def colour(departure, most):
    """Returns white for no departure, towards red for warmer and blue for colder."""
    share = min(abs(departure) / most, 1) ** 0.8
    end = WARM if departure > 0 else COLD
    return "#" + "".join(f"{round(247 + (c - 247) * share):02x}" for c in end)


def stretches(rows):
    """Splits the rows where months are missing."""
    pieces = []
    for row in rows:
        if not pieces or month_of(row) != month_of(pieces[-1][-1]) + 1:
            pieces.append([])
        pieces[-1].append(row)
    return pieces


def record_marks(records, rows, x, temperature, rain):
    """Marks the record months of a city with dots and words."""
    by_month = {row["month"]: row for row in rows}
    for record in records:
        row = by_month.get(record["month"])
        if row is None or record["record"] == "driest":
            continue
        at = x(month_of(row) + 0.5)
        anchor = "end" if at > WIDTH - RIGHT - 130 else "start"
        shift = -8 if anchor == "end" else 8
        wet = record["record"] == "wettest"
        value = float(record["value"])
        words = f"{record['record']}: {value:.1f} {record['unit']}".replace("-", "−")
        y = rain(value) + 8 if wet else temperature(value)
        if not wet:
            yield f"<circle cx='{at:.1f}' cy='{y:.1f}' r='4' fill='{PAPER}' stroke='{INK}' stroke-width='1.6'/>"
        halo = f"paint-order='stroke' stroke='{PAPER}' stroke-width='4' font-weight='600'"
        yield text(at + shift, y + (0 if wet else -7 if record["record"] == "warmest" else 15), words, 11.5, INK, anchor, halo)


def temperature_part(rows, x, y, first, last):
    for tick in range(int(y.low // 10) * 10, int(y.high) + 1, 10):
        if tick >= y.low:
            yield line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "#b9c2ca" if tick == 0 else GRID)
            yield text(LEFT - 8, y(tick) + 4, f"{tick} °C".replace("-", "−"), 11, anchor="end")
    for year in range(first // 12, last // 12 + 1):
        if first < year * 12 <= last:
            yield line(x(year * 12), y.end - 4, x(year * 12), y.start + RAIN + 44, GRID)
    for piece in stretches(rows):
        middle = [(x(month_of(r) + 0.5), r) for r in piece]
        if len(middle) == 1:  # an area needs two points
            middle = [(x(month_of(piece[0])), piece[0]), (x(month_of(piece[0]) + 1), piece[0])]
        high = [(at, y(float(r["temp_high_c"]))) for at, r in middle]
        low = [(at, y(float(r["temp_low_c"]))) for at, r in reversed(middle)]
        mean = [(at, y(float(r["temp_mean_c"]))) for at, r in middle]
        yield f"<polygon points='{points(high + low)}' fill='{BAND}' fill-opacity='0.55'/>"
        yield f"<polyline points='{points(mean)}' fill='none' stroke='{LINE}' stroke-width='2.2' stroke-linejoin='round'/>"


def rain_part(rows, x, y):
    yield line(LEFT, y.start, WIDTH - RIGHT, y.start, "#b9c2ca")
    yield text(LEFT - 8, y.start, "0 mm", 11, anchor="end")
    yield text(LEFT - 8, y(200) + 4, "200 mm", 11, anchor="end")
    yield line(LEFT, y(200), WIDTH - RIGHT, y(200), GRID)
    step = x(1) - x(0)
    for row in rows:
        top = y(float(row["precipitation_mm"]))
        title = f"{name_of(month_of(row))}: {row['precipitation_mm']} mm, {row['wet_days']} wet days"
        yield rect(x(month_of(row)) + step * 0.14, top, step * 0.72, y.start - top, WATER, title)


def anomaly_part(rows, x, top, most):
    step = x(1) - x(0)
    yield text(LEFT - 8, top + 13, "vs usual", 11, anchor="end")
    for row in rows:
        if row["temp_anomaly_c"] == "":
            yield rect(x(month_of(row)), top, step, 18, GRID, f"{name_of(month_of(row))}: too few years")
            continue
        departure = float(row["temp_anomaly_c"])
        yield rect(x(month_of(row)), top, step + 0.1, 18, colour(departure, most), f"{name_of(month_of(row))}: {departure:+.1f} °C")


def panel(city, top, rows, anomalies, records, months, scales):
    first, last = months
    x = Axis(first, last + 1, LEFT, WIDTH - RIGHT)
    temperature = Axis(*scales["temperature"], top + 22 + TEMPERATURE, top + 22)
    rain_base = top + 22 + TEMPERATURE + 10 + RAIN
    rain = Axis(0, scales["rain"], rain_base, rain_base - RAIN)
    yield text(LEFT, top + 6, city, 17, INK, extra="font-weight='700'")
    yield from temperature_part(rows, x, temperature, first, last)
    yield from rain_part(rows, x, rain)
    yield from anomaly_part(anomalies, x, rain_base + 8, scales["anomaly"])
    yield from record_marks(records, rows, x, temperature, rain)
    for month in range(first, last + 1):
        if month % 12 == 0 or month == first:
            yield text(x(month) + 3, rain_base + 42, str(month // 12) if month % 12 == 0 else name_of(month), 11.5)


def legend(most, anomalies):
    y, x = 84, LEFT
    yield rect(x, y - 10, 22, 12, BAND)
    yield line(x, y - 4, x + 22, y - 4, LINE, "stroke-width='2.2'")
    yield text(x + 30, y, "mean, between the average low and high")
    yield rect(x + 300, y - 10, 10, 12, WATER)
    yield text(x + 318, y, "precipitation")
    if not any(row["temp_anomaly_c"] for row in anomalies):
        return
    start, cells = x + 428, 21
    for i in range(cells):
        yield rect(start + i * 6, y - 10, 6.2, 12, colour((i / (cells - 1) * 2 - 1) * most, most))
    yield text(start + cells * 6 + 8, y, f"{most:.0f} °C colder to {most:.0f} °C warmer than the month usually is")


def draw(monthly, anomalies, climate):
    monthly = sorted(monthly, key=lambda row: (row["city"], month_of(row)))
    cities = sorted({row["city"] for row in monthly})
    months = min(map(month_of, monthly)), max(map(month_of, monthly))
    departures = [abs(float(row["temp_anomaly_c"])) for row in anomalies if row["temp_anomaly_c"]]
    scales = {
        "temperature": (
            min(0, *(float(row["temp_low_c"]) for row in monthly)) - 2,
            max(20, *(float(row["temp_high_c"]) for row in monthly)) + 2,
        ),
        "rain": max(200, *(float(row["precipitation_mm"]) for row in monthly)) * 1.05,
        "anomaly": max(3, *departures, 0),
    }
    height = TOP + len(cities) * (PANEL + GAP) + 16
    span = str(months[0] // 12) if months[0] // 12 == months[1] // 12 else f"{months[0] // 12}–{months[1] // 12}"
    yield f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' {FONT} role='img'>"
    yield f"<title>The weather of {escape(' and '.join(cities))}, {span}</title>"
    yield rect(0, 0, WIDTH, height, PAPER)
    yield text(LEFT, 42, f"The weather of {' and '.join(cities)}, {span}", 25, INK, extra="font-weight='700'")
    yield text(LEFT, 63, "Each month, and how far it departs from the mean of that month in these years", 13)
    yield from legend(scales["anomaly"], anomalies)
    for i, city in enumerate(cities):
        of_city = [[row for row in rows if row["city"] == city] for rows in (monthly, anomalies, climate)]
        yield from panel(city, TOP + 14 + i * (PANEL + GAP), *of_city, months, scales)
    yield text(WIDTH - RIGHT, height - 12, "Data: NOAA National Centers for Environmental Information", 11, anchor="end")
    yield "</svg>"


def main():
    monthly = read("SERVO_INPUT_ANALYTICS_MONTHLY")
    if not monthly:
        raise SystemExit("analytics/monthly has no rows, nothing to draw")
    lines = draw(monthly, read("SERVO_INPUT_ANALYTICS_ANOMALIES"), read("SERVO_INPUT_REPORT_CLIMATE"))
    target = Path(os.environ["SERVO_OUTPUT"]) / "climate.svg"
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"drew {target.name}: {len(monthly)} months")


if __name__ == "__main__":
    main()
