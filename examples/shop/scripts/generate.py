"""Writes the shop's data into data/, the same on every machine: everything follows from SEED.

    python3 scripts/generate.py
    python3 scripts/generate.py --corrected

The days are 2025-03-24 to 2025-04-06 in Europe/Paris, where 2025-03-30 has 23 hours. The events of
the American site are those of 2025-03-08 to 2025-03-10 in America/New_York, where 2025-03-09 has
23 hours. One delivery is bad on purpose: the orders of 2025-04-02 contain an amount below zero. With
--corrected, that amount is right.
"""

import csv
import datetime
import pathlib
import random
import sys
import zoneinfo

SEED = 42
DATA = pathlib.Path(__file__).resolve().parent.parent / "data"

FIRST_DAY, DAYS = datetime.date(2025, 3, 24), 14
COUNTRIES = ["FR", "DE", "ES", "IT", "NL"]
CATEGORIES = ["books", "games", "garden", "kitchen", "music", "sport"]
PARTNERS = ["acme", "globex", "initech"]
CHANNELS = ["app", "store", "web"]
PAGES = ["home", "search", "product", "basket", "paid"]


def write(name, header, rows):
    path = DATA / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(header)
        out.writerows(rows)


def customers(rng):
    rows = []
    for i in range(1, 401):
        since = datetime.date(2023, 1, 1) + datetime.timedelta(days=rng.randrange(800))
        rows.append([i, f"customer{i}@example.com", rng.choice(COUNTRIES), since])
    write("customers.csv", ["customer_id", "email", "country", "since"], rows)
    return rows


def products(rng):
    rows = []
    for i in range(1, 81):
        cost = rng.randrange(200, 9000)
        rows.append([i, f"Product {i}", rng.choice(CATEGORIES), cost, cost * rng.randrange(120, 220) // 100, rng.randrange(1, 11)])
    write("products.csv", ["product_id", "name", "category", "cost_cents", "price_cents", "supplier_id"], rows)
    write("suppliers.csv", ["supplier_id", "name", "country"],
          [[i, f"Supplier {i}", rng.choice(COUNTRIES)] for i in range(1, 11)])
    return rows


def orders(rng, products, corrected):
    """Writes one file of orders and one of their lines for each day, and the returns."""
    number, returns = 0, []
    for day in (FIRST_DAY + datetime.timedelta(days=n) for n in range(DAYS)):
        heads, lines = [], []
        for _ in range(rng.randrange(60, 120)):
            number += 1
            at = datetime.datetime.combine(day, datetime.time(rng.randrange(7, 23), rng.randrange(60)))
            total = 0
            for line in range(1, rng.randrange(2, 5)):
                product = rng.choice(products)
                quantity = rng.randrange(1, 4)
                lines.append([number, line, product[0], quantity, product[4]])
                total += quantity * product[4]
            heads.append([number, rng.randrange(1, 401), at.isoformat(), rng.choice(CHANNELS), total])
            if rng.random() < 0.06:
                returns.append([number, day + datetime.timedelta(days=rng.randrange(1, 10)), rng.choice(["broken", "late", "regret"])])
        if day == datetime.date(2025, 4, 2) and not corrected:
            heads[7][4] = -heads[7][4]
        write(f"orders/{day}.csv", ["order_id", "customer_id", "ordered_at", "channel", "amount_cents"], heads)
        write(f"lines/{day}.csv", ["order_id", "line", "product_id", "quantity", "price_cents"], lines)
    write("returns.csv", ["order_id", "returned_on", "reason"], returns)


def events(rng, name, zone, first, days):
    """Writes the page views of a site, with times in UTC."""
    zone = zoneinfo.ZoneInfo(zone)
    begin = datetime.datetime.combine(first, datetime.time(), zone).astimezone(datetime.timezone.utc)
    end = datetime.datetime.combine(first + datetime.timedelta(days=days), datetime.time(), zone).astimezone(datetime.timezone.utc)
    rows, at = [], begin
    while True:
        at += datetime.timedelta(seconds=rng.randrange(20, 200))
        if at >= end:
            break
        rows.append([at.strftime("%Y-%m-%dT%H:%M:%SZ"), rng.randrange(1, 1500), rng.choices(PAGES, [10, 8, 6, 3, 1])[0]])
    write(name, ["seen_at", "visitor", "page"], rows)


def partners(rng, products, new):
    for partner in PARTNERS + (["hooli"] if new else []):
        offered = sorted(rng.sample(products, 30), key=lambda p: p[0])
        write(f"partners/{partner}.csv", ["product_id", "price_cents"],
              [[p[0], p[4] * rng.randrange(85, 125) // 100] for p in offered])


def main():
    rng = random.Random(SEED)
    customers(rng)
    made = products(rng)
    orders(rng, made, corrected="--corrected" in sys.argv[1:])
    events(rng, "events_eu.csv", "Europe/Paris", datetime.date(2025, 3, 29), 3)
    events(rng, "events_us.csv", "America/New_York", datetime.date(2025, 3, 8), 3)
    partners(rng, made, new="--new-partner" in sys.argv[1:])
    write("rates.csv", ["currency", "per_euro"], [["EUR", "1.0000"], ["USD", "1.0816"], ["GBP", "0.8359"]])
    write("campaigns.csv", ["campaign", "channel", "first_day", "last_day", "cost_cents"],
          [["spring", "web", "2025-03-24", "2025-03-30", 120000], ["easter", "app", "2025-04-01", "2025-04-06", 90000]])


if __name__ == "__main__":
    main()
