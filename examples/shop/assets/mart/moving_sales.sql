/* servo
description: The mean revenue of three days up to this one.
partitions:
  date: {daily: {start: 2025-03-26, end: 2025-04-06, timezone: Europe/Paris}}
deps:
  - {asset: mart/daily_sales, map: {date: {window: [-2, 0]}}}
*/
SELECT getvariable('date') AS day, sum(amount_cents) / count(DISTINCT day) AS mean_amount_cents
FROM mart.daily_sales
