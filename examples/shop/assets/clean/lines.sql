/* servo
description: Lines of orders of one day, with the margin of each.
partitions:
  date: {daily: {start: 2025-03-24, end: 2025-04-06, timezone: Europe/Paris}}
checks:
  - unique: [order_id, line]
  - range: {column: quantity, min: 1}
*/
SELECT l.order_id, l.line, l.product_id, p.category, l.quantity, l.quantity * l.price_cents AS amount_cents,
    l.quantity * (l.price_cents - p.cost_cents) AS margin_cents
FROM raw.lines l JOIN clean.products p USING (product_id)
