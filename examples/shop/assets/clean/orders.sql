/* servo
description: Orders of one day. A day with an impossible amount is not published.
partitions:
  date: {daily: {start: 2025-03-24, end: 2025-04-06, timezone: Europe/Paris}}
checks:
  - unique: [order_id]
  - not_null: [customer_id, ordered_at]
  - range: {column: amount_cents, min: 0}
  - row_count: {min: 20, max: 1000}
  - relationships: {column: customer_id, to: clean/customers, field: customer_id}
quarantine: {expires: 7d}
*/
SELECT order_id, customer_id, ordered_at, channel, amount_cents
FROM raw.orders
