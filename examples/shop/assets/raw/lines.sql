/* servo
description: Lines of the orders of one day, as delivered.
partitions:
  date: {daily: {start: 2025-03-24, end: 2025-04-06, timezone: Europe/Paris}}
*/
SELECT order_id, line, product_id, quantity, price_cents
FROM read_csv('data/lines/*.csv', filename = true)
WHERE filename LIKE '%/' || getvariable('date') || '.csv'
