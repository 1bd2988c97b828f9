"""The SQL projects that `make bench-models` measures, independent of any engine.

A model is a name ("layer.name"), the models that it reads, and one SQL statement. The statement
names other models as {layer.name} and input files as {file:NAME}.
"""

import dataclasses
import re

REFERENCE = re.compile(r"\{([a-z0-9_]+\.[a-z0-9_]+)\}")
FILE = re.compile(r"\{file:([a-z_]+)\}")


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    sql: str

    @property
    def layer(self):
        return self.name.split(".")[0]

    @property
    def short(self):
        return self.name.split(".")[1]

    @property
    def reads(self):
        return sorted(set(REFERENCE.findall(self.sql)))

    def render(self, reference, file):
        """Returns the statement with every model and file named by the two functions."""
        text = REFERENCE.sub(lambda m: reference(m.group(1)), self.sql)
        return FILE.sub(lambda m: file(m.group(1)), text)


# Statements that write the input files, by file name.
def inputs(project, rows):
    if project == "small":
        return {"base": "SELECT i AS id, (hash(i) % 1000)::BIGINT AS v FROM range(1000) r(i)"}
    return {
        "orders": f"""
            SELECT i AS order_id,
                   (hash(i) % 100000)::BIGINT AS customer_id,
                   (hash(i + 7) % 10000)::BIGINT AS product_id,
                   TIMESTAMP '2022-01-01' + INTERVAL 1 SECOND * (i * 31 % 94608000) AS ordered_at,
                   (hash(i + 13) % 5)::INTEGER AS quantity,
                   (100 + hash(i + 17) % 90000)::BIGINT AS unit_price_cents,
                   ['web', 'app', 'store', 'phone'][(hash(i + 19) % 4 + 1)::INTEGER] AS channel
            FROM range({rows}) r(i)""",
        "customers": """
            SELECT i AS customer_id,
                   ['DE', 'FR', 'US', 'JP', 'BR', 'IN'][(hash(i + 23) % 6 + 1)::INTEGER] AS country,
                   ['new', 'regular', 'gold'][(hash(i + 29) % 3 + 1)::INTEGER] AS segment
            FROM range(100000) r(i)""",
        "products": """
            SELECT i AS product_id, 'brand ' || (hash(i + 31) % 200) AS brand,
                   'category ' || (hash(i + 37) % 30) AS category
            FROM range(10000) r(i)""",
    }


def models(project):
    return small() if project == "small" else large()


def small():
    """500 models in ten layers. Each reads two models of the layer before."""
    width, found = 50, []
    for level in range(10):
        for i in range(width):
            if level == 0:
                sql = f"SELECT id, v + {i} AS v FROM read_parquet('{{file:base}}')"
            else:
                left, right = f"l{level - 1}.m{i}", f"l{level - 1}.m{(i * 7 + 3) % width}"
                sql = f"SELECT a.id, a.v + b.v % 7 AS v FROM {{{left}}} a JOIN {{{right}}} b USING (id)"
            found.append(Model(f"l{level}.m{i}", sql))
    return found


DIMENSIONS = {
    "country": "country", "segment": "segment", "category": "category", "brand": "brand", "channel": "channel",
    "weekday": "dayname(ordered_at)", "month": "monthname(ordered_at)", "hour": "extract(hour FROM ordered_at)",
}


def large():
    """50 models over the orders: staging, joins, windows, aggregates, and one summary."""
    found = [
        Model("stg.orders", """SELECT order_id, customer_id, product_id, ordered_at, quantity, unit_price_cents, channel,
       quantity * unit_price_cents AS amount_cents
FROM read_parquet('{file:orders}') WHERE quantity > 0"""),
        Model("stg.customers", "SELECT customer_id, country, segment FROM read_parquet('{file:customers}')"),
        Model("stg.products", "SELECT product_id, brand, category FROM read_parquet('{file:products}')"),
        Model("core.orders", """SELECT o.order_id, o.customer_id, o.product_id, o.ordered_at, o.channel, o.quantity, o.amount_cents,
       c.country, c.segment, p.brand, p.category
FROM {stg.orders} o JOIN {stg.customers} c USING (customer_id) JOIN {stg.products} p USING (product_id)"""),
        Model("core.customer_days", """SELECT customer_id, CAST(ordered_at AS DATE) AS day, count(*) AS orders, sum(amount_cents) AS amount_cents
FROM {core.orders} GROUP BY customer_id, CAST(ordered_at AS DATE)"""),
        Model("core.gaps", """SELECT customer_id, channel, ordered_at,
       date_diff('hour', lag(ordered_at) OVER (PARTITION BY customer_id ORDER BY ordered_at), ordered_at) AS hours
FROM {core.orders}"""),
        Model("core.customers", """SELECT customer_id, min(day) AS first_day, max(day) AS last_day, sum(orders) AS orders, sum(amount_cents) AS amount_cents
FROM {core.customer_days} GROUP BY customer_id"""),
    ]
    for name, value in DIMENSIONS.items():
        found += [
            Model(f"mart.{name}_daily", f"""SELECT {value} AS value, CAST(ordered_at AS DATE) AS day, count(*) AS orders, sum(amount_cents) AS amount_cents
FROM {{core.orders}} GROUP BY {value}, CAST(ordered_at AS DATE)"""),
            Model(f"mart.{name}_cumulative", f"""SELECT value, day, sum(amount_cents) OVER (PARTITION BY value ORDER BY day) AS amount_cents
FROM {{mart.{name}_daily}}"""),
            Model(f"mart.{name}_share", f"""SELECT value, day, amount_cents / sum(amount_cents) OVER (PARTITION BY day) AS share
FROM {{mart.{name}_daily}}"""),
            Model(f"mart.{name}_top", f"""SELECT value, product_id, amount_cents FROM (
  SELECT {value} AS value, product_id, sum(amount_cents) AS amount_cents,
         row_number() OVER (PARTITION BY {value} ORDER BY sum(amount_cents) DESC, product_id) AS place
  FROM {{core.orders}} GROUP BY {value}, product_id) AS ranked
WHERE place <= 10"""),
            Model(f"mart.{name}_customers", f"""SELECT {value} AS value, count(DISTINCT customer_id) AS customers
FROM {{core.orders}} GROUP BY {value}"""),
        ]
    totals = "\nUNION ALL\n".join(
        f"SELECT '{name}' AS dimension, sum(amount_cents) AS amount_cents FROM {{mart.{name}_daily}}" for name in DIMENSIONS)
    found += [
        Model("mart.gaps", """SELECT channel, count(*) AS orders, avg(hours) AS hours, median(hours) AS median_hours
FROM {core.gaps} GROUP BY channel"""),
        Model("mart.retention", """SELECT date_trunc('month', c.first_day) AS cohort, date_diff('month', c.first_day, d.day) AS months, count(DISTINCT d.customer_id) AS customers
FROM {core.customer_days} d JOIN {core.customers} c USING (customer_id)
GROUP BY date_trunc('month', c.first_day), date_diff('month', c.first_day, d.day)"""),
        Model("mart.summary", totals),
    ]
    return found


def descendants(all_models, name):
    """Returns name and every model that reads it, directly or indirectly."""
    found = {name}
    for model in all_models:  # readers come after what they read
        if found & set(model.reads):
            found.add(model.name)
    return found
